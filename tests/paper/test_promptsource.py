"""PromptSource's YAML: exactly two tags, every template read or refused; and one rule for which of them are used."""

from collections import Counter

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.data.promptsource import SourceTemplate, filter_templates, promptsource_names, read_promptsource
from flip_flop.prompts import Template
from tests.paper.test_archive import YAML


def write(folder, text, name="drinks"):
    path = folder / name / "templates.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def second(name):
    """A second template behind the first."""
    return YAML.split("templates:\n")[1].replace("1a", "2b").replace("name: plain", f"name: {name}")


def test_read_a_template_and_its_metadata(tmp_path):
    (source,) = read_promptsource(write(tmp_path, YAML), "drinks")
    assert (source.name, source.original_task) == ("plain", True)
    assert source.template.render({"drink": "Tea", "label": 1}, "label") == ("Tea?", ("No", "Yes"))


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("No ||| Yes", "no", ", template 1a", "answer_choices is False"),
        ("No ||| Yes", "[No, Yes]", ", template 1a", r"answer_choices is \[False, True\]"),
        ("name: plain", "name: 3", ", template 1a", "name is 3"),
        ("name: plain", "nom: plain", ", template 1a", "has an unknown key 'nom'"),
        ("    name: plain\n", "", ", template 1a", "has no name"),
        ("id: 1a", "name: plain", " line 11", "duplicate key 'name'"),
        ("original_task: true", "original_task: 1", ", template 1a, metadata", "original_task is 1"),
        ("original_task: true", "task: true", ", template 1a, metadata", "has an unknown key 'task'"),
        ("!TemplateMetadata", "!Metadata", " line 7", "could not determine a constructor for the tag '!Metadata'"),
        (
            "!TemplateMetadata",
            "!!python/name:os.system",
            " line 7",
            "the tag tag:yaml.org",
        ),
        ("[Accuracy]", "!!python/object/apply:os.system [id]", " line 9", "the tag "),
        ("[Accuracy]", "&a [Accuracy]\n      choices: *a", " line 10", "an alias"),
    ],
)
def test_wrong_content_is_refused_with_its_place(old, new, place, words, tmp_path):
    folder = write(tmp_path, YAML.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"E-TASK-FILE: .*drinks/templates.yaml{place}:? .*{words}"):
        read_promptsource(folder, "drinks")


@pytest.mark.parametrize("text", ["", "templates: []", "- a", "dataset: drinks"])
def test_a_file_that_holds_no_templates_is_refused(text, tmp_path):
    with pytest.raises(InputError, match=r"E-TASK-FILE: .*holds no templates"):
        read_promptsource(write(tmp_path, text), "drinks")


@pytest.mark.parametrize(
    ("jinja", "code"),
    [
        ("{{ x|unknown_filter }}", "E-TPL-SYNTAX"),
        ("{% if x %}", "E-TPL-SYNTAX"),
        ("a ||| b ||| c", "E-TPL-SYNTAX"),
    ],
)
def test_an_invalid_template_does_not_affect_the_others(jinja, code, tmp_path):
    odd = second("odd").replace("{{ drink }}? ||| {{ answer_choices[label] }}", jinja)
    odd_source, plain = read_promptsource(write(tmp_path, YAML + odd), "drinks")
    assert odd_source.template.code == code
    assert "'odd'" in odd_source.template.message
    assert isinstance(plain.template, Template)


def test_two_templates_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"E-TPL-DUP: .*'plain'"):
        read_promptsource(write(tmp_path, YAML + second("plain")), "drinks")


def test_an_unknown_dataset_is_named_with_its_nearest(tmp_path):
    folder = write(write(tmp_path, YAML), YAML, "food/hot")
    assert promptsource_names(folder) == ("drinks", "food/hot")
    with pytest.raises(InputError, match=r"E-TASK-UNKNOWN: .*'drink'. Did you mean 'drinks'\?"):
        read_promptsource(folder, "drink")
    with pytest.raises(InputError, match="E-TASK-UNKNOWN"):
        read_promptsource(folder, "food/../drinks")


@pytest.mark.slow
def test_each_of_the_279_files_and_2085_templates_is_read_or_refused_with_a_reason(promptsource_folder):
    names = promptsource_names(promptsource_folder)
    if len(names) != 279:
        pytest.skip("FLIP_FLOP_PROMPTSOURCE names another folder than PromptSource 0.2.3")
    refused_files, outcomes, in_refused_files = {}, Counter[str](), 0
    for name in names:
        try:
            sources = read_promptsource(promptsource_folder, name)
        except InputError as error:
            refused_files[name] = str(error)
            text = (promptsource_folder / name / "templates.yaml").read_text(encoding="utf-8")
            in_refused_files += sum(line.endswith(": !Template") for line in text.splitlines())
            continue
        for source in sources:
            if isinstance(source.template, Template):
                outcomes["read"] += 1
            else:
                assert repr(source.name) in source.template.message
                outcomes[source.template.code] += 1
    assert outcomes == {"read": 2073}
    assert list(refused_files) == ["squad_v2"]
    assert "E-TASK-FILE" in refused_files["squad_v2"]
    assert "line 243: an alias (*name) is not allowed" in refused_files["squad_v2"]
    assert in_refused_files == 12
    assert sum(outcomes.values()) + in_refused_files == 2085


ROWS = [{"x": "tea", "y": 1, "extra": "a"}, {"x": "", "y": 0, "extra": "b"}]


def source(name, jinja, choices="No ||| Yes", *, original=True):
    return SourceTemplate(name, jinja, choices, original, Template(name, jinja, choices))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (source("t", "{{ x }}?", original=False), "it does not ask for the dataset's own task"),
        (source("t", "{{ x }}?", None), "it has no answer choices"),
        (source("t", "{{ x }}?", "  "), "it has no answer choices"),
        (source("t", "{% if x %}{{ x }}{% endif %}"), "row 2: the prompt is empty (E-TPL-EMPTY)"),
        (source("t", "{{ z }}?"), "row 1: there is no field 'z' (E-TPL-RENDER)"),
        (source("t", "{{ y }}?"), "row 1: the prompt reads the label field 'y' (E-TPL-LABEL-LEAK)"),
        (source("t", "{{ x }}?", "No ||| {{ x }}"), "row 2: answer choice 2 is empty (E-TPL-EMPTY)"),
        (source("t", "{{ x }}?", "No"), "row 1: 1 answer choices for 2 labels (E-TPL-LABELS)"),
        (source("t", "{{ x }}?", "a ||| b ||| c"), "row 1: 3 answer choices for 2 labels (E-TPL-LABELS)"),
    ],
)
def test_a_template_is_dropped_with_its_reason(candidate, reason):
    plain, other = source("plain", "{{ x }}?"), source("another", "{{ x }}!")
    found = filter_templates([plain, candidate, other], ROWS, label_field="y", num_labels=2)
    assert found.kept.names == ("plain", "another")
    assert found.dropped == (("t", reason),)


def test_a_template_that_has_failed_is_not_rendered_again():
    rows = iter([{"x": "tea"}, {"x": "tea"}, {"x": ""}, *[{"x": "tea"}] * 9])
    assert len(filter_templates([source("t", "{{ x }}")], rows, label_field=None).kept) == 0
    assert len(list(rows)) == 9


def test_storycloze_has_five_templates(promptsource_folder):
    sentences = {f"input_sentence_{index}": f"Sentence {index}." for index in range(1, 5)}
    endings = {"sentence_quiz1": "Ending 3.", "sentence_quiz2": "Another ending 3.", "answer_right_ending": 1}
    rows = [{**sentences, **endings, "story_id": "3"}]
    candidates = read_promptsource(promptsource_folder, "story_cloze/2016")
    kept = filter_templates(candidates, rows, label_field="answer_right_ending", num_labels=2).kept
    assert len(kept) == 5
    assert kept[0].render(rows[0], "answer_right_ending")[1] == ("Ending 3.", "Another ending 3.")
