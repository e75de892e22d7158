"""What surrounds the answer in a generated text: the reasoning before it, the end of the turn, and wrappers."""

import json
import re
from collections.abc import Iterator

import regex

from flip_flop.reading import limits

# The end of the reasoning of DeepSeek, Qwen, Claude, Magistral, GPT-OSS (harmony, also without its special tokens),
# Seed-OSS, Kimi, Command A and Sky-T1.
ANSWER_BEGINS = re.compile(
    r"(?i)</(?:think|thinking|thought|seed:think)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>\s*final\b[^<>]*(?:<\|constrain\|>[^<>]*)?<\|message\|>|\Aanalysis.*?assistantfinal",
    re.DOTALL,
)
REASONING = re.compile(
    r"(?i)<(?:think|thinking|thought|seed:think)>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|START_THINKING\|>"
    r"|<\|channel\|>"
)
# What may begin reasoning or end it, except formatting in HTML.
MARK = re.compile(
    r"(?i)<(?:think|thinking|thought|seed:think)>|\[THINK\]|◁[^◁▷\n]{1,40}▷|<[|｜][^<>\n]{1,40}>|<[^<>\n]{1,40}[|｜]>"
    r"|</(?!(?:b|i|u|em|strong|p|br|code|span|li|ul|ol|div|a|h\d)>)[^<>\n]{1,40}>|\[/[^\[\]\n]{1,40}\]"
)
# The ends of turns, which some servers do not remove.
ENDS = (
    *("</s>", "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
    *("<|return|>", "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|>"),
)
# Read backwards from the end of a text, without going back: in linear time.
TURN_ENDS = re.compile(rf"(?i)(?:\s+|{'|'.join(re.escape(end[::-1]) for end in ENDS)})*+")
ROLE = re.compile(r"(?i)\A(?:assistant|model)\s*[:\n]\s*")
LONG_SPACE = re.compile(r"\s{9,}")
# What an answer is called, most common first.
NAMES = (
    *("final_answer", "answer", "verdict", "winner", "choice", "label", "decision", "judgment", "judgement"),
    *("score", "rating", "grade", "category", "classification", "class", "sentiment", "prediction", "result"),
    *("conclusion", "preference", "output", "response"),
)
FENCE = re.compile(r"```[\w+-]*\s*\n(.*?)\n?\s*```", re.DOTALL)
TAG = re.compile(r"<(\w+)(?: [^<>\n]*)?>(.*?)</\1>", re.DOTALL)
NAMED_END = re.compile(rf"(?i)</({'|'.join(NAMES)})>")
BRACE = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")
BOXED_WORD = re.compile(r"\\(?:boxed|fbox)\s+([^\s{}$]+)")
TEXT_COMMAND = regex.compile(r"\A\\(?:text|mathrm|mathbf|textbf)\{(.*)\}\Z", regex.DOTALL)
MAX_BRACES = 5  # places of a text where an object of JSON may begin
MAX_WRAPPERS = 5  # around each other
# Forms of ``extract``.
AFTER = "after "
JSON_KEY = "json: "


def begins_reasoning(prompt: str) -> bool:
    """Whether a prompt ends with a mark that begins reasoning, as some chat templates do.

    Example:
        >>> begins_reasoning("Good?<think> "), begins_reasoning("Good?<think></think>")
        (True, False)
    """
    prompt = prompt[-200:].rstrip()
    return any(match.end() == len(prompt) for match in REASONING.finditer(prompt))


def split_reasoning(text: str) -> tuple[str, str]:
    """Return the reasoning of a text with its last mark, and what follows it."""
    *_, end = 0, *(match.end() for match in ANSWER_BEGINS.finditer(text))
    return text[:end], text[end:]


def after_reasoning(text: str, prompt: str = "") -> str | None:
    """Return what follows the reasoning of a text, which a ``prompt`` may have begun. None: the reasoning has no end.

    Example:
        >>> after_reasoning("No complaint.</think>Yes"), after_reasoning("<think>No"), after_reasoning("No", "<think>")
        ('Yes', None, None)
    """
    reasoning, answer = split_reasoning(text)
    is_open = REASONING.search(answer) or (not reasoning and begins_reasoning(prompt))
    return None if is_open else answer


def tidy(text: str) -> str:
    r"""Return a text without the ends of its turn and without long white space.

    Example:
        >>> tidy("assistant\n\nYes <|im_end|>  </s> ")
        'Yes'
    """
    text = LONG_SPACE.sub(lambda space: "\n" if "\n" in space[0] else " ", text.strip())
    ending = TURN_ENDS.match(text[::-1])
    assert ending is not None
    return ROLE.sub("", text[: len(text) - ending.end()])


def unwrap(text: str, *, has_boxes: bool = True) -> str:
    r"""Return an answer without its wrappers: a fence, an object of JSON, tags such as ``<answer>``, or ``\boxed``.

    Example:
        >>> unwrap('```json\n{"reason": "short", "winner": "A"}\n```'), unwrap("So <answer>B</answer>")
        ('A', 'B')
    """
    for _ in range(MAX_WRAPPERS):
        inner = next(_inner(text, has_boxes), text).strip()
        if inner == text:
            break
        text = inner
    return text


def _inner(text: str, has_boxes: bool) -> Iterator[str]:
    """Yield what is inside of a wrapper."""
    if fence := FENCE.fullmatch(text):
        yield fence[1]
    if (value := json_value(text)) is not None:
        yield value
    named = set(named_tags(text))
    if len(named) == 1:
        yield from named
    if tag := TAG.fullmatch(text):
        yield tag[2]
    if not has_boxes:
        return
    boxes = set(boxed(text))
    if len(boxes) == 1:
        yield from boxes
    if command := TEXT_COMMAND.match(text.strip("$ ")):
        yield command[1]


def named_tags(text: str) -> Iterator[str]:
    """Yield the contents of each tag such as ``<answer>``."""
    lower = text.lower() if text.isascii() else text  # other letters may change their number
    for end in NAMED_END.finditer(text):
        tag = f"<{end[1].lower()}>"
        start = lower.rfind(tag, 0, end.start())
        if start >= 0:
            yield text[start + len(tag) : end.start()].strip()


def boxed(text: str) -> list[str]:
    r"""Return the contents of each ``\boxed`` of a text, without those in others."""
    contents = [match[1] for match in BOXED_WORD.finditer(text)]
    starts = []
    for brace in BRACE.finditer(text):
        if brace[0].endswith("{") and len(brace[0]) != 2:
            starts.append(brace.end() if len(brace[0]) > 2 else -1)
        elif brace[0] == "}" and starts:
            start = starts.pop()
            if start >= 0 and max(starts, default=-1) < 0:
                contents.append(text[start : brace.start()].strip())
    return contents


def json_value(text: str, key: str | None = None) -> str | None:
    """Return the value of a key of the first object of JSON in a text, or of the key that names an answer.

    An object without such a name has one key.

    Example:
        >>> json_value('So: {"winner": "A", "confidence": 0.9}'), json_value('{"x": 8}'), json_value('{"x": 8}', "y")
        ('A', '8', None)
    """
    for content in json_objects(text):
        lower = {name.lower().replace(" ", "_"): value for name, value in content.items()}
        names = [name for name in NAMES if name in lower]
        if key is not None:
            value = content.get(key)
        elif names:
            value = lower[names[0]]
        else:
            value = next(iter(content.values())) if len(content) == 1 else None
        if isinstance(value, str | int | float):
            return str(value)
    return None


def json_objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the objects of JSON in a text."""
    start = text.find("{")
    for _ in range(MAX_BRACES):
        if start < 0:
            return
        try:
            content, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict):
            yield content
        start = text.find("{", start + 1)


def extracted(extract: str, text: str) -> str | None:
    """Return the part of a text that ``extract`` of a task finds, or None.

    Raises:
        TimeoutError: A regular expression takes more than :data:`~flip_flop.reading.limits.MAX_SECONDS`.
    """
    if extract.startswith(AFTER):
        mark = extract.removeprefix(AFTER).strip()
        if mark in text:
            return text.rpartition(mark)[2].strip().partition("\n")[0]
        return None
    if extract.startswith(JSON_KEY):
        return json_value(text, extract.removeprefix(JSON_KEY).strip())
    match = regex.search(extract, text, timeout=limits.MAX_SECONDS)
    if match:
        return match[min(len(match.groups()), 1)]
    return None
