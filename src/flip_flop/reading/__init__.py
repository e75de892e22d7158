"""From text to an answer: labels, numbers, texts and mathematical expressions, of models and of references."""

from flip_flop.reading.numbers import NUMBER
from flip_flop.reading.reader import AnswerFormat, Read, Reader, check_extract
from flip_flop.reading.reply import begins_reasoning
from flip_flop.reading.texts import has_spaces, token_f1
