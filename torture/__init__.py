"""Attacks on the command line: kills, damaged files, full disks, races, mutated inputs and hostile templates."""
