"""StoryCloze 2016: the two CSV files that its owners give out, under the field names of the hub."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.tasks.sources import FileSource, Rows

VARIABLE = "FLIP_FLOP_STORY_CLOZE"
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
    """One of the two files, in the user's folder: ``folder``, or what ``FLIP_FLOP_STORY_CLOZE`` names."""

    file_name: str
    folder: Path | None = None

    def load(self) -> Rows:
        """Read the file under the templates' names; ``E-DATA-STORYCLOZE``: it is missing, or is another one."""
        folder = self.folder or os.environ.get(VARIABLE)
        if not folder:
            message = "StoryCloze is given out by its owners, to each user."
            hint = f"Register at {OWNERS}, then give --story-cloze-dir the folder of the two 2016 CSV files."
            raise InputError("E-DATA-STORYCLOZE", message, hint)
        path = Path(folder) / self.file_name
        if not path.is_file():
            hint = f"Register at {OWNERS}, and keep the file's name."
            raise InputError("E-DATA-STORYCLOZE", f"{folder} has no file {self.file_name!r}.", hint)
        rows = FileSource(path).load()
        missing = [column for column in FIELDS if column not in rows.columns()]
        if missing:
            message = f"{path} has no column {missing[0]!r}."
            raise InputError("E-DATA-STORYCLOZE", message, "Use the 2016 file as its owners give it out.")
        renamed = []
        for row in rows.rows:
            fields: dict[str, Any] = {name: row.fields[column] for column, name in FIELDS.items()}
            answer = fields["answer_right_ending"]
            if answer not in ("1", "2"):
                message = f"{rows.location(row)}: AnswerRightEnding is {answer!r}."
                raise InputError("E-LABEL-UNDECLARED", message, "It must be 1 or 2.")
            renamed.append(row._replace(fields=fields | {"answer_right_ending": int(answer)}))
        return replace(rows, rows=tuple(renamed))
