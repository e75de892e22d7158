"""Attacks on the command line: signals, damaged files, full disks, races, mutated inputs and hostile templates."""
