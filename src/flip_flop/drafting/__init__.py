"""Templates for your data: drafted from a file, in other formats, and in other words."""
