"""Audit, train without labels, audit again, compare: `python examples/ten_lines.py` in the project's folder."""

from flip_flop import F2CConfig, audit, compare, load_model, load_task, train

task = load_task("examples/reviews/task.yaml")  # or Task(...) with a list of dicts, or a datasets.Dataset
before = audit("demo", task)  # or audit(model, tokenizer, task)
run = train("demo", task, F2CConfig(num_train_epochs=3), "out/f2c")  # without labels
after = audit(load_model("demo", adapter=run.adapter), task)
after.write("out/after")
print(compare(before, after))
