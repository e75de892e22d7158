"""Audit, train without labels, audit again, compare: `python examples/ten_lines.py` in the project's folder."""

from flip_flop import F2CConfig, audit, compare, load_model, load_task, train

task = load_task("examples/reviews/task.yaml")  # or Task(...) with a list of dicts, or a datasets.Dataset
before = audit("demo", task)  # or audit(model, tokenizer, task)
# The defaults are for real models: these are for the embedded toy.
settings = F2CConfig(learning_rate=3e-4, num_train_epochs=3.0, per_device_train_batch_size=8, use_cpu=True)
run = train("demo", task, settings, "out/f2c")  # without labels
after = audit(load_model("demo", adapter=run.adapter), task)
after.write("out/after")
print(compare(before, after))
