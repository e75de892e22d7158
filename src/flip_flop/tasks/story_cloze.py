"""StoryCloze 2016: the two CSV files that its owners give out, under the field names of the hub."""

import os
from dataclasses import dataclass
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.tasks.readers import NumberedRow
from flip_flop.tasks.sources import FileSource, Rows

STORY_CLOZE_VARIABLE = "FLIP_FLOP_STORY_CLOZE"
OWNERS = "https://cs.rochester.edu/nlp/rocstories"
FIELDS = {
    "InputStoryid": "story_id",
    "InputSentence1": "input_sentence_1",
    "InputSentence2": "input_sentence_2",
    "InputSentence3": "input_sentence_3",
    "InputSentence4": "input_sentence_4",
    "RandomFifthSentenceQuiz1": "sentence_quiz1",
    "RandomFifthSentenceQuiz2": "sentence_quiz2",
    "AnswerRightEnding": "answer_right_ending",
}


@dataclass(frozen=True)
class StoryClozeSource:
    """One of the two files.

    Attributes:
        file_name: The name under which the owners give it out.
        folder: Where the user has put it. Where this is None, the variable ``FLIP_FLOP_STORY_CLOZE`` may name it.
    """

    file_name: str
    folder: Path | None = None

    def load(self) -> Rows:
        """Read the file; its columns get the names that the templates use.

        Raises:
            InputError: ``E-DATA-STORYCLOZE``: the file is not there, or is not what it should be.
        """
        named = self.folder or os.environ.get(STORY_CLOZE_VARIABLE)
        if not named:
            message = "StoryCloze is given out by its owners, to each user."
            hint = f"Register at {OWNERS}, then give --story-cloze-dir the folder of the two 2016 CSV files."
            raise InputError("E-DATA-STORYCLOZE", message, hint)
        path = Path(named) / self.file_name
        if not path.is_file():
            hint = f"Register at {OWNERS}, and keep the file's name."
            raise InputError("E-DATA-STORYCLOZE", f"{named} has no file {self.file_name!r}.", hint)
        rows = FileSource(path).load()
        missing = [column for column in FIELDS if column not in rows.columns()]
        if missing:
            message = f"{path} has no column {missing[0]!r}."
            raise InputError("E-DATA-STORYCLOZE", message, "Take the 2016 file as its owners give it out.")
        renamed = tuple(NumberedRow(row.number, self._fields(row, rows)) for row in rows.rows)
        return Rows(rows.source, rows.unit, renamed, rows.provenance)

    @staticmethod
    def _fields(row: NumberedRow, rows: Rows) -> dict[str, str | int]:
        fields: dict[str, str | int] = {name: row.fields[column] for column, name in FIELDS.items()}
        answer = row.fields["AnswerRightEnding"]
        if answer not in ("1", "2"):
            message = f"{rows.place(row)}: AnswerRightEnding is {answer!r}."
            raise InputError("E-LABEL-UNDECLARED", message, "It must be 1 or 2.")
        return fields | {"answer_right_ending": int(answer)}
