"""Numbers in texts. A piece of an expression, a range, a scale or an identifier is no number."""

from decimal import Context, Decimal

import regex

# A sign is not the hyphen of "10-12" or "(1)-2". A number does not continue a word, as in "x2" or "m^2", or another
# number. The words of Thai, Chinese, Japanese and Korean have no spaces around them.
NO_WORD = r"(?<![^\W_\u0e00-\u0e4f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u05d0-\u05ea\u0620-\u064a])"
SIGN = r"(?<![)\]%°/])[-+−－﹣‐‑]|(?<![^\s:=(\[$])–"
FRACTIONS = "¼-¾⅐-⅞"
NUMBER = regex.compile(
    rf"(?:{NO_WORD}(?P<sign>{SIGN})|{NO_WORD}(?<!\d[.,:])(?<!/)(?<![^\W_]\^))\p{{Sc}}?"
    rf"(?P<digits>(?:(?<!\.)\.)?[\d{FRACTIONS}][\d.,/:'’_^{{}}²³¹⁰-⁹⁄／٫٬．，{FRACTIONS}]*"
    rf"(?:(?:[ \u00a0\u2009\u202f]|\\[,;: ])\d{{3}}(?!\d)| ?[{FRACTIONS}])*)"
    r"(?P<exponent>[eE][-+]?\d{1,3}(?![^\W_]))?"
)
# Other forms can be read in several ways: 1,5 and 1/2 and 10:30 and 1 000 and 10^3.
PLAIN = regex.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
SCALE = (  # in the languages of the Group of 20, and Thai
    r"hundred|thousand|lakh|million|crore|billion|trillion|dozen|and an? (?:half|quarter|third)"
    r"|tausend|milliar|mio\b|mrd\b|dutzend|mill[oó]n|mille\b|mila?\b|mil[jh]|mily|bin\b|juta|ribu|тыс|милл|млн|млрд"
    r"|[百千万萬億亿兆만억조천백π]|พัน|หมื่น|แสน|ล้าน|हज़ार|लाख|करोड़|ألف|آلاف|ملايين|مليون|مليار|\\pi|\\sqrt"
)
# What makes the number before or after it a piece of something else.
OPERATOR = r"[×·÷/±∓^]|\\(?:times|cdot|div|pm|mp)\b"
BEFORE_NUMBER = (
    r"\b(?:minus|negative|negativ|moins|menos|meno|eksi|минус)\s",  # minus 5
    r"[负負]|マイナス|마이너스\s?",
    r"√|\\sqrt\{|\^\{?|\p{L}\(",  # √2, (x)^2, log(8)
    rf"(?:\*\*?|{OPERATOR}) ?",  # 3 * 4, ±3
    r"[\d)\]}%°] ?[-–—−~〜～+] ?",  # 8-9, 8 ~ 9, (1)-2
    r"\p{L}[-–‐‑+]|(?<!\p{L})\p{L} ?[-−+] ?|[-−–]\(",  # COVID-19, 2n + 1, -(5)
    r"\d\s(?:to|bis|until|till|through|thru|à|hasta|out of)\s",  # 8 to 9, 8 out of 10
    r"(?<!\S)[-−–]\p{Lu}\p{L}{0,2}\.?\p{Sc}?\s?",  # -US$5
)
AFTER_NUMBER = (
    r"(?:[kKMB]|bn|mn|tn)(?![^\W_])|[eE][-+]?\d|[xX][\da-fA-F]",
    rf"\s?(?i:{SCALE})",
    rf" ?(?:{OPERATOR}) ?[\w(\\]| \* [\w(\\]|\*\*?[\w(\\]",  # 2 * x
    r" ?\+ ?[\w(\\]",  # 5 + x
    r"[abixyz](?![^\W_])| ?(?:pi|sqrt)\b|\(\w|√",  # 4i, 2 pi, 3(x)
)
_BEFORE = regex.compile(rf"(?i)(?:{'|'.join(BEFORE_NUMBER)})\Z")
_AFTER = regex.compile("|".join(AFTER_NUMBER))
LOSS = regex.compile(r"\(\s?\p{Sc}")  # ($5) is -5 in accounting
EMPHASIS = regex.compile(r"(?<![\w*])(\*\*?|__?)(?=[^\s*_])([^*_\n]{1,80})(?<=\S)\1(?![\w*])")
MAX_BEFORE = 14  # characters that are read before a number


def numbers(text: str) -> list[str | None]:
    """Return the decimal digits of each number of a text, and None for one that can be read in several ways.

    Example:
        >>> numbers("-$5.50, 1,200 and 2e3; x2, 1/2"), numbers("8-9, 3,5 or log(8)")
        (['-5.5', '1200', '2000', None], ['8', None, None, None])
    """
    text = EMPHASIS.sub(r"\2", text.replace("{,}", ",").replace(",\\!", ","))
    return [_key(match, text) for match in NUMBER.finditer(text)]


def _key(match: regex.Match[str], text: str) -> str | None:
    digits = match["digits"].rstrip(".,/:'’_{}，．").replace("．", ".")
    start, end = match.span()
    is_piece = (
        not PLAIN.fullmatch(digits)
        or _BEFORE.search(text[max(0, start - MAX_BEFORE) : start])
        or _AFTER.match(text, end)
        or LOSS.match(text, max(0, start - 1))
    )
    if is_piece:
        return None
    sign = "-" if match["sign"] not in (None, "+") else ""
    number = Decimal(f"{sign}{digits.replace(',', '')}{match['exponent'] or ''}")
    exact = number.normalize(Context(prec=len(digits))) or Decimal(0)  # one zero, without a sign
    return f"{exact:f}"
