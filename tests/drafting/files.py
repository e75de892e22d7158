"""Texts and CSV files for `init`."""

THINGS = ("the room was small", "the food was cold", "the staff was kind", "the wifi worked well")


def text(number):
    return f"On day {number} {THINGS[number % 4]}."


def csv(header, row, count=24):
    lines = [row(number) for number in range(count)]
    return "\n".join([header, *lines]) + "\n"
