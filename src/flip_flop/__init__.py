"""Flip-Flop Consistency."""
