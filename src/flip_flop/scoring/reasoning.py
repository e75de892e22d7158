"""The answer in a generated text, after the reasoning that some models write first."""

import re

# The end of the reasoning of DeepSeek, Qwen, Claude, Magistral, GPT-OSS (harmony, also without its special tokens),
# Seed-OSS, Kimi, Command A and Sky-T1.
ANSWER_BEGINS = re.compile(
    r"(?i)</(?:think|thinking|thought|seed:think)>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>\s*final\b[^<>]*(?:<\|constrain\|>[^<>]*)?<\|message\|>|\Aanalysis.*?assistantfinal",
    re.DOTALL,
)
# The end of a turn, which some servers do not remove.
TURN_ENDS = re.compile(
    r"(?i)(?:\s|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|END_OF_TURN_TOKEN|END_RESPONSE)\|>)+\Z"
)
# What may begin reasoning or end it, except formatting in HTML.
MARK = re.compile(
    r"(?i)<(?:think|thinking|thought|seed:think)>|\[THINK\]|◁[^◁▷\n]{1,40}▷|<[|｜][^<>\n]{1,40}>|<[^<>\n]{1,40}[|｜]>"
    r"|</(?!(?:b|i|u|em|strong|p|br|code|span|li|ul|ol|div|a|h\d)>)[^<>\n]{1,40}>|\[/[^\[\]\n]{1,40}\]"
)


def after_reasoning(text: str) -> tuple[str, str]:
    """Return the answer of a generated text, and a mark that makes it unreadable or an empty text.

    The answer follows the last mark that ends reasoning. Reasoning without an end has no answer, and no other mark is
    known to end it.

    Example:
        >>> after_reasoning("No complaint.</think>Yes"), after_reasoning("<think>No"), after_reasoning("No[/PLAN]Yes")
        (('Yes', ''), ('', '<think>'), ('', '[/PLAN]'))
    """
    answer = TURN_ENDS.sub("", ANSWER_BEGINS.split(text)[-1]).strip()
    mark = MARK.search(answer)
    return ("", mark[0]) if mark else (answer, "")


def unread(text: str) -> str:
    """Return what to list of a text without a label: its mark, or the text without line breaks."""
    answer, mark = after_reasoning(text)
    return f"mark {mark}" if mark else " ".join(answer.split())
