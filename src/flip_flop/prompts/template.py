"""Templates, and rows rendered under each of them."""

import functools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flip_flop.errors import InputError, first_repeated, look_up
from flip_flop.files import Json, sha256_json
from flip_flop.prompts.sandbox import RESERVED_FIELD, SEPARATOR, Fields, check_characters, compile_source, render_text
from flip_flop.reading import AnswerFormat

CHAT_KEYS = ("system", "assistant_prefix", "chat_template_kwargs")
MIN_VALUE_LIMIT = 16  # room for a word and the three dots
Rendering = tuple[str, tuple[str, ...]]  # a prompt and its answers


@dataclass(frozen=True)
class Template:
    r"""A template with PromptSource's keys, compiled by the constructor.

    Attributes:
        name: Unique within a task.
        jinja: The text of the prompt. A text after ``|||`` is the target, which a prompt does not render.
        answer_choices: A Jinja text with ``|||`` between the answers, in the order of the task's labels. None for
            open answers.
        levels: The template's level on each axis, such as ``{"wording": "ask", "order": "swapped"}``, for flip rates
            (docs/how-to/judges.md). They do not change the prompt.

    Raises:
        InputError: ``E-TPL-SYNTAX`` or ``E-TPL-RENDER``; ``E-TASK-KEY`` for an order without a wording.

    Example:
        >>> plain = Template("plain", "{{ text }}\nUrgent? ||| {{ answer_choices[urgent] }}", "No ||| Yes")
        >>> plain.render({"text": "My screen is black.", "urgent": 1}, "urgent")
        ('My screen is black.\nUrgent?', ('No', 'Yes'))
    """

    name: str
    jinja: str
    answer_choices: str | None = None
    levels: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.name.strip() or "\0" in self.name:
            raise InputError("E-TPL-SYNTAX", f"a template has the name {self.name!r}.", "Name it, without NUL.")
        if "order" in self.levels and "wording" not in self.levels:
            raise InputError(
                "E-TASK-KEY",
                f"{self._where} has an order but no wording.",
                "Give the same wording to all orders of it.",
            )
        check_characters(self.name, "a template's name")
        compile_source(self.jinja, True, self._where)
        if not isinstance(self.answer_choices, str | None):
            raise InputError(
                "E-TPL-SYNTAX",
                f"{self._where}: answer_choices is a {type(self.answer_choices).__name__}.",
                "Give one text, such as 'No ||| Yes'.",
            )
        if self.answer_choices is not None:
            compile_source(self.answer_choices, False, f"{self._where}, answer_choices")

    @property
    def _where(self) -> str:
        return f"template {self.name!r}"

    @property
    def _drawn_as(self) -> str:
        """The name in the key of random choices: variants of a wording draw the same."""
        return self.levels.get("wording", self.name)

    @functools.cached_property
    def plain_choices(self) -> tuple[str, ...]:
        """Answers without Jinja, or (): most are the same for every row, and half of the work."""
        text = self.answer_choices
        if text is None or "{" in text or "\r" in text:  # Jinja makes one newline of \r\n
            return ()
        return tuple(part.strip() for part in text.split(SEPARATOR))

    def digest(self) -> str:
        """The SHA-256 of the template's name and texts."""
        return sha256_json({key: getattr(self, key) for key in ("name", "jinja", "answer_choices")})

    @property
    def entry(self) -> Json:
        """The keys of the template in a task file."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {})}

    def require_choices(self) -> None:
        """Refuse a template without answer choices (``E-TPL-LABELS``)."""
        if not (self.answer_choices or "").strip():
            raise InputError(
                "E-TPL-LABELS",
                f"{self._where} has no answer_choices, so no answer can be scored.",
                "Write them in the order of the labels: No ||| Yes.",
            )

    def render(
        self,
        fields: Fields,
        label_field: str | None,
        *,
        instance_id: str = "",
        seed: int = 0,
        row: str | None = None,
        value_limit: int | None = None,
        has_choices: bool = True,
    ) -> Rendering:
        """Render the prompt and the answer choices of one row, without outer white space.

        Args:
            fields: The row.
            label_field: A field that the template must not read.
            instance_id: Random choices depend on it, on the seed and on the template's name.
            seed: The seed of random choices.
            row: The name of the row in an error.
            value_limit: The longest value that the prompt prints, in characters. Answers are not shortened.
            has_choices: Whether the template has answer choices. Without them, none are returned.

        Raises:
            InputError: ``E-TPL-RENDER``, ``E-TPL-LABEL-LEAK``, ``E-TPL-LABELS``, and those of
                :func:`flip_flop.prompts.sandbox.render_text`.
        """
        row = row or f"instance {instance_id!r}"
        if has_choices:
            self.require_choices()
        if RESERVED_FIELD in fields:
            raise InputError(
                "E-DATA-COLUMN",
                f"{row} has a field named {RESERVED_FIELD!r}, which templates need for the answers.",
                "Rename the field.",
            )
        visible = {key: value for key, value in fields.items() if key != label_field}
        choices = self.plain_choices
        if has_choices and not choices:
            choices = tuple(
                render_text(
                    self.answer_choices or "",
                    visible,
                    is_prompt=False,
                    hidden=label_field,
                    where=f"{self._where}, answer_choices",
                    row=row,
                    random_key=(seed, "answer choices", instance_id, self._drawn_as),
                )
            )
        (prompt,) = render_text(
            self.jinja,
            {**visible, RESERVED_FIELD: list(choices)},
            is_prompt=True,
            hidden=label_field,
            where=self._where,
            row=row,
            random_key=(seed, "prompt", instance_id, self._drawn_as),
            value_limit=value_limit,
        )
        return prompt, choices

    def target(self, fields: Fields, choices: Sequence[str], *, seed: int = 0, row: str = "") -> str | None:
        """Render the text after ``|||`` with the gold label. Return None for a template without a target."""
        parts = render_text(
            self.jinja,
            {**fields, RESERVED_FIELD: list(choices)},
            is_prompt=False,  # renders the target, too
            hidden=None,
            where=f"{self._where}, target",
            row=row,
            random_key=(seed, "prompt", row, self._drawn_as),
        )
        return parts[-1] if len(parts) > 1 else None


@dataclass(frozen=True)
class TemplateSet:
    """Templates with unique names, in the order given.

    Attributes:
        value_limit: The longest value that a prompt prints, in characters. A longer value ends at a space, with three
            dots. PromptSource's default is 2,048. None prints all of it. The digest does not depend on it: the record
            of the rows has it.
        has_choices: Whether the templates have answer choices. Without them, the answers are open.

    Raises:
        InputError: ``E-TPL-DUP`` or ``E-TASK-KEY``.
    """

    templates: tuple[Template, ...]
    value_limit: int | None = None
    has_choices: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", tuple(self.templates))
        if others := [type(item).__name__ for item in self.templates if not isinstance(item, Template)]:
            raise InputError(
                "E-TASK-KEY",
                f"a template is of type {others[0]}.",
                "Give a text, or Template(name, jinja, answer_choices), to Task or TemplateSet.of.",
            )
        if self.value_limit is not None and self.value_limit < MIN_VALUE_LIMIT:
            raise InputError(
                "E-TASK-KEY",
                f"prompt_value_limit is {self.value_limit}.",
                f"Give at least {MIN_VALUE_LIMIT} characters, or leave it out.",
            )
        if (name := first_repeated(self.names)) is not None:
            raise InputError("E-TPL-DUP", f"two templates are named {name!r}.", "Rename one of them.")

    @classmethod
    def of(cls, templates: Any, labels: Iterable[object] = ()) -> "TemplateSet":
        """Return a set of templates, or make one of a list or a dictionary by name.

        The answers of a template that is a text are ``labels``. Its default name is ``template_1``, ``template_2``, ...

        Raises:
            InputError: ``E-TASK-KEY`` for another type, or an error of a template.
        """
        if isinstance(templates, cls):
            return templates
        if isinstance(templates, Set):
            raise InputError("E-TASK-KEY", "templates is a set, which has no order.", "Give a list.")
        if isinstance(templates, str) or not isinstance(templates, Iterable):
            templates = [templates]
        if not isinstance(templates, Mapping):
            templates = {f"template_{index}": item for index, item in enumerate(templates, 1)}
        answers = f" {SEPARATOR} ".join(map(str, labels)) or None
        members = [Template(name, item, answers) if isinstance(item, str) else item for name, item in templates.items()]
        return cls(tuple(members))

    def __len__(self) -> int:
        return len(self.templates)

    def __iter__(self) -> Iterator[Template]:
        return iter(self.templates)

    def __getitem__(self, index: int) -> Template:
        return self.templates[index]

    @property
    def names(self) -> tuple[str, ...]:
        """The templates' names, in order."""
        return tuple(template.name for template in self.templates)

    def select(self, names: Iterable[str]) -> "TemplateSet":
        """The templates of these names, in the order of the names (``E-TASK-UNKNOWN``, ``E-TPL-DUP``)."""
        by_name = {template.name: template for template in self.templates}
        names = list(names)
        if (twice := first_repeated(names)) is not None:
            raise InputError("E-TPL-DUP", f"the template {twice!r} is selected twice.", "Name it once.")
        selected = (look_up(name, by_name, "E-TASK-UNKNOWN", "there is no template") for name in names)
        return replace(self, templates=tuple(selected))

    def digest(self) -> str:
        """The SHA-256 of the templates, in order."""
        return sha256_json([template.digest() for template in self.templates])


@dataclass(frozen=True)
class Chat:
    """Additions to a chat template.

    Attributes:
        system: The text of a system turn before the user's turn.
        assistant_prefix: The beginning of the assistant's turn. The answer follows it, after a space.
        chat_template_kwargs: Further values for the chat template, such as ``{"enable_thinking": False}``.
    """

    system: str | None = None
    assistant_prefix: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def given(self) -> Json:
        """The fields that are set, by name."""
        return {key: value for key, value in vars(self).items() if value}


@dataclass(frozen=True)
class OpenAnswers:
    """Answers of one instance that a model writes.

    Attributes:
        format: The format of answers without answer choices. None: each answer is one of the choices.
        extract: The part of a text that has its answer choice, as in :class:`~flip_flop.reading.AnswerFormat`.
        references: The keys of right answers.
        texts: The generated answer under each template. Empty before the model has written them.
        endings: What ended each answer, with the white space before it. None: it is cut at ``max_tokens``.
    """

    format: AnswerFormat | None = None
    extract: str | None = None
    references: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    endings: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class RenderedInstance:
    """One instance under V templates.

    Attributes:
        id: Unique within a split.
        prompts: One per template.
        choices: One answer per label, per template. Answers are compared by index. Instances without answer choices
            have V + 1, which are empty until the answers are generated.
        label: The gold label's index, or None.
        chat: Additions to the chat template.
        open: The answers that a model writes. None: the answer choices are scored.
        fields: The row without its label, if known.
        seed: The seed of the random choices of its templates.
        templates: The templates that rendered it, if known.
    """

    id: str
    prompts: tuple[str, ...]
    choices: tuple[tuple[str, ...], ...]
    label: int | None
    chat: Chat = field(default=Chat(), repr=False)
    open: OpenAnswers | None = None
    fields: Fields = field(default_factory=dict, repr=False, compare=False)
    templates: TemplateSet | None = field(default=None, repr=False, compare=False)
    seed: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(self.prompts))
        object.__setattr__(self, "choices", tuple(map(tuple, self.choices)))

    @property
    def is_open(self) -> bool:
        """Whether the instance has no answer choices."""
        return self.open is not None and self.open.format is not None

    @property
    def written(self) -> tuple[str, ...]:
        """The generated answer under each template, or ()."""
        return self.open.texts if self.open else ()

    def under(self, places: Sequence[int]) -> "RenderedInstance":
        """The instance under some of its templates."""
        prompts = tuple(self.prompts[place] for place in places)
        choices = tuple(self.choices[place] for place in places)
        templates = self.templates and self.templates.select(self.templates.names[place] for place in places)
        return replace(self, prompts=prompts, choices=choices, templates=templates)

    def render(self, place: int, jinja: str) -> str:
        """Render another text, with the random choices of one of its templates."""
        assert self.templates is not None
        template = replace(self.templates[place], jinja=jinja)
        limit = self.templates.value_limit
        return template.render(self.fields, None, instance_id=self.id, seed=self.seed, value_limit=limit)[0]

    @property
    def texts(self) -> str:
        """Prompts and answers in one Unicode form, to find the same row in another file."""
        return unicodedata.normalize("NFC", repr((self.prompts, self.choices)))


def render_instance(
    fields: Fields,
    templates: TemplateSet,
    *,
    id: str,
    label: int | None,
    num_labels: int | None,
    label_field: str | None,
    seed: int = 0,
    row: str | None = None,
) -> RenderedInstance:
    """Render one row under every template.

    Args:
        fields: The row.
        templates: The templates.
        id: The id of the instance. Random choices depend on it and on the seed.
        label: The index of the gold label, or None.
        num_labels: The number of answers; by default that of the first template.
        label_field: The field that templates must not read.
        seed: The seed of random choices.
        row: The name of the row in an error, such as ``tickets.csv line 3``.

    Raises:
        InputError: An error of :meth:`Template.render` or :func:`check_rendering`.

    Example:
        >>> plain = Template("plain", "Is {{ x }} good?", "No ||| Yes")
        >>> terse = Template("terse", "{{ x }}:", "bad ||| good")
        >>> where = {"id": "test-1", "label": 1, "num_labels": 2, "label_field": None}
        >>> tea = render_instance({"x": "tea"}, TemplateSet((plain, terse)), **where)
        >>> tea.prompts, tea.choices
        (('Is tea good?', 'tea:'), (('No', 'Yes'), ('bad', 'good')))
    """
    row = row or f"instance {id!r}"
    prompts = []
    all_choices = []
    for template in templates:
        prompt, choices = template.render(
            fields,
            label_field,
            instance_id=id,
            seed=seed,
            row=row,
            value_limit=templates.value_limit,
            has_choices=templates.has_choices,
        )
        num_labels = num_labels or len(choices)
        check_rendering(template, prompt, choices, num_labels if templates.has_choices else 0, row)
        prompts.append(prompt)
        all_choices.append(choices or ("",) * (len(templates) + 1))
    visible = {name: value for name, value in fields.items() if name != label_field}
    return RenderedInstance(
        id, tuple(prompts), tuple(all_choices), label, fields=visible, templates=templates, seed=seed
    )


def check_rendering(template: Template, prompt: str, choices: Sequence[str], num_labels: int, row: str) -> None:
    """Reject an empty prompt, answers that are not one per label and different, and half of a character.

    Raises:
        InputError: ``E-TPL-EMPTY``, ``E-TPL-LABELS``, ``E-LABEL-DUP``, ``E-TPL-SYNTAX``.
    """
    where = f"template {template.name!r}, {row}"
    for text in (prompt, *choices):
        check_characters(text, where)
    if not prompt:
        raise InputError("E-TPL-EMPTY", f"{where}: the prompt is empty.", "Write a text for every row.")
    if len(choices) != num_labels:
        raise InputError("E-TPL-LABELS", f"{where}: {len(choices)} answer choices for {num_labels} labels.")
    if len(choices) == 1:
        raise InputError(
            "E-TPL-LABELS",
            f"{where}: {choices[0]!r} is the only answer choice.",
            "Write at least two, separated by |||.",
        )
    for index, choice in enumerate(choices):
        if not choice:
            raise InputError(
                "E-TPL-EMPTY", f"{where}: answer choice {index + 1} is empty.", "Give every label at least one word."
            )
        if choice in choices[:index]:
            raise InputError("E-LABEL-DUP", f"{where}: two labels have the same answer {choice!r}.")


def templates_differ_in_answer_words(instances: Iterable[RenderedInstance]) -> bool:
    """Whether some instance's templates answer the same label in different words.

    If they do, a divergence over the vocabulary pulls each template toward the others' words.
    """
    return any(len(set(instance.choices)) > 1 for instance in instances)
