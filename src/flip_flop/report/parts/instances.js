"use strict";
// The rows behind the report's numbers, and the sections that links and printing open. Every [data-show] of the page becomes a button that opens them, filtered.
// Text reaches the page by textContent alone. Without this script, the page says all that it has to say.
(() => {
  const reveal = () => {
    for (let each = document.getElementById(location.hash.slice(1)); each; each = each.parentElement) if (each.localName === "details") each.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("main details:not([open], .example)")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

  const dialog = document.getElementById("instances");
  if (!dialog || !dialog.showModal || !window.DecompressionStream) return;
  const field = Object.fromEntries([...dialog.querySelectorAll("[name]")].map((each) => [each.name, each]));
  const [list, status, heldNote, more, rest, columns] = ["list", "status", "held", "more", "rest", "columns"].map((part) => dialog.querySelector("." + part));
  const PAGE = 40;
  const groups = {};
  let data, group, found, shown;

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Data: Base64 of gzip of JSON, read when a group's instances are first asked for.
  const load = (number) => groups[number] ??= (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById(`g${number}-data`).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const read = JSON.parse(await new Response(stream).text());
    read.textAt = new Map(read.promptsOf.map((position, at) => [position, at]));
    return read;
  })();

  const options = (select, names, any) => {
    const empty = any === undefined ? [] : [new Option(any, "")];
    select.replaceChildren(...empty, ...names.map((name, value) => new Option(name, value)));
  };

  async function enter(number) {
    data = await load(number);
    if (group !== number) {
      group = number;
      for (const name of ["a", "b", "run"]) options(field[name], data.runs);
      for (const name of ["t", "u"]) options(field[name], data.templates, "any");
      for (const name of ["label", "gold"]) options(field[name], data.labels, "any");
      for (const name of ["was", "now"]) options(field[name], data.states, "any");
      const hasGold = data.gold.some((label) => label >= 0), pair = data.runs.length > 1;
      for (const name of ["gold", "right"]) field[name].closest("label").hidden = !hasGold;
      for (const name of ["label", "gold"]) field[name].closest("label").hidden ||= Boolean(data.right);
      for (const option of field.sort.options) if (/margin|widest/.test(option.value)) option.hidden = option.disabled = Boolean(data.right);
      for (const name of ["b", "run", "now"]) field[name].closest("label").hidden = !pair;
      for (const option of dialog.querySelectorAll("[data-two]")) option.hidden = option.disabled = !pair;
      const left = document.getElementById(`g${number}-left-out`);
      heldNote.textContent = left ? left.textContent : "";
      const rows = list.parentNode, size = data.templates.length, names = make("span", "side");
      rows.style.setProperty("--n", Math.min(size, 24));
      rows.style.setProperty("--lines", Math.ceil(size / 24));
      rows.classList.toggle("worded", size <= 8);
      rows.classList.toggle("pair", pair);
      if (pair) names.append(make("i"));
      names.append(...data.templates.map((name) => make("span", "", name)));
      columns.replaceChildren(make("span", "", "Row"), names);
    }
  }

  // The state of the view is the values of its fields: they are what the address holds.
  function read() {
    const value = (name) => (field[name].value === "" ? null : Number(field[name].value));
    return { ...Object.fromEntries(["a", "b", "run", "t", "u", "label", "gold", "was", "now"].map((name) => [name, value(name)])),
      agree: field.agree.value, right: field.right.value, sort: field.sort.value, q: field.q.value.trim().toLowerCase() };
  }

  function address() {
    const query = new URLSearchParams({ g: group });
    for (const [name, each] of Object.entries(field)) if (each.value !== "") query.set(name, each.value);
    history.replaceState(null, "", "#show?" + query);
  }

  async function open(query) {
    const number = Number(query.get("g"));
    if (!document.getElementById(`g${number}-data`)) return;
    await enter(number);
    // By default the list shows the answers of the form that the decision names. Another run of a link is beside the first.
    const { first, last } = data, given = Object.fromEntries(query), run = Number(given.run ?? given.b ?? last);
    const usual = { a: first, b: last, run: last, sort: data.right ? "data" : "margin" }, start = { ...usual, b: run === first ? last : run, run, ...given };
    for (const [name, each] of Object.entries(field)) {
      each.value = start[name] ?? "";
      if (each.selectedIndex === -1) each.selectedIndex = 0;
    }
    rest.open ||= [...rest.querySelectorAll("[name]")].some((each) => each.value !== String(usual[each.name] ?? ""));
    if (!dialog.open) dialog.showModal();
    update();
  }

  // Several open answers to a row can be right.
  const right = (run, at, t) => (data.right ? data.right[run][at * data.templates.length + t] === 1 : data.answers[run][at * data.templates.length + t] === data.gold[at]);

  // One template stands for itself and is compared with the vote, two with each other, none with all others.
  function select() {
    const view = read(), size = data.templates.length, both = [view.a, view.b ?? view.a];
    const scope = view.t === null && view.u === null ? [...Array(size).keys()] : [view.t, view.u].filter((t) => t !== null);
    const answer = (run, at, t) => data.answers[run][at * size + t];
    const agrees = (run, at) => {
      const first = scope.length > 1 ? answer(run, at, scope[0]) : data.votes[run][at];
      return scope.every((t) => answer(run, at, t) === first);
    };
    const moved = (was, now) => (at) => scope.some((t) => right(view.a, at, t) === was && right(view.b, at, t) === now);
    const agreement = {
      no: (at) => !agrees(view.run, at), yes: (at) => agrees(view.run, at),
      fixed: (at) => !agrees(view.a, at) && agrees(view.b, at), broken: (at) => agrees(view.a, at) && !agrees(view.b, at),
      changed: (at) => scope.some((t) => answer(view.a, at, t) !== answer(view.b, at, t)),
    };
    const verdict = {
      "all-right": (at) => scope.every((t) => right(view.run, at, t)), "some-wrong": (at) => scope.some((t) => !right(view.run, at, t)),
      "vote-wrong": (at) => data.standing[view.run][at] < 2,
      fixed: moved(false, true), broken: moved(true, false), wrong: moved(false, false), right: moved(true, true),
    };
    const contains = (at) => {
      const texts = data.prompts[data.textAt.get(at)] ?? [], has = (text) => text.toLowerCase().includes(view.q);
      return has(data.ids[at]) || scope.some((t) => texts[t]?.some(([, prompt, written]) => has(prompt) || written.some(([, text]) => has(text))));
    };
    const tests = [
      agreement[view.agree],
      verdict[view.right] && ((at) => data.gold[at] >= 0 && verdict[view.right](at)),
      view.label !== null && ((at) => scope.some((t) => answer(view.run, at, t) === view.label)),
      view.gold !== null && ((at) => data.gold[at] === view.gold),
      view.was !== null && ((at) => data.standing[view.a][at] === view.was),
      view.now !== null && ((at) => data.standing[both[1]][at] === view.now),
      view.q && contains,
    ].filter(Boolean);
    const margin = data.ids.map((_, at) => Math.min(...scope.map((t) => data.margins[view.run][at * size + t])));
    const changes = (at) => scope.filter((t) => answer(both[0], at, t) !== answer(both[1], at, t)).length;
    const order = { margin: (x, y) => margin[x] - margin[y], widest: (x, y) => margin[y] - margin[x],
      changed: (x, y) => changes(y) - changes(x), data: (x, y) => x - y }[view.sort];
    const kept = [...data.ids.keys()].filter((at) => tests.every((test) => test(at)));
    return { view, scope, answer, margin, places: kept.sort((x, y) => order(x, y) || x - y) };
  }

  function update() {
    address();
    found = select();
    shown = 0;
    list.replaceChildren();
    const held = data.ids.length, number = found.places.length.toLocaleString("en");
    status.textContent = `${number} of ${held.toLocaleString("en")} rows`
      + (held < data.total ? ` that this file holds (of ${data.total.toLocaleString("en")})` : "")
      + (data.runs.length > 1 ? `, answers of ${sides().map((run) => data.runs[run]).join(" and ")}` : "");
    extend();
  }

  function extend() {
    list.append(...found.places.slice(shown, shown + PAGE).map(row));
    shown += PAGE;
    more.hidden = shown >= found.places.length;
  }

  const sides = () => [...new Set([found.view.a, found.view.b ?? found.view.a])];

  function preview(place) {
    const [, prompt] = data.prompts[place][0][0], [start, end] = data.around.map((text) => text.length);
    return (prompt.slice(start, prompt.length - end).trim() || prompt).slice(0, 400);
  }

  function row(at) {
    const item = make("li"), button = make("button", "item"), about = make("span", "about"), facts = make("span", "quiet", data.ids[at] + " ");
    const place = data.textAt.get(at), words = data.choices[data.choiceOf[place]], answers = make("span", "sides"), size = data.templates.length;
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    if (data.gold[at] >= 0) facts.append(gold(data.gold[at], data.right && words?.[0][data.gold[at]]));
    if (!data.right) facts.append(make("span", "", ` margin ${(found.margin[at] / 10).toFixed(1)}`));
    about.append(facts);
    if (place !== undefined) about.append(make("span", "text", preview(place)));
    for (const run of sides()) {
      const side = make("span", "side");
      if (data.runs.length > 1) side.append(make("small", "", data.runs[run]));
      for (let t = 0; t < size; t++) {
        const label = found.answer(run, at, t), lead = data.margins[run][at * size + t], word = words?.[t][label] ?? data.labels[label] ?? (data.right ? "unreadable" : "no label");
        const wrong = data.gold[at] >= 0 && !right(run, at, t), out = found.scope.length < size && !found.scope.includes(t);
        const answer = make("span", "answer" + (out ? " out" : "")), cell = make("i", `cell l${label % 7}${wrong ? " wrong" : ""}`);
        cell.style.setProperty("--m", lead / 1000);
        answer.title = `${data.runs[run]}, ${data.templates[t]}: ${word}${data.right ? "" : `, margin ${(lead / 10).toFixed(1)}`}`;
        answer.append(cell, make("span", "word", word));
        side.append(answer);
      }
      answers.append(side);
    }
    button.append(about, answers);
    button.addEventListener("click", () => {
      const detail = item.querySelector(".prompts, p");
      if (detail) detail.remove();
      else item.append(prompts(at));
      button.setAttribute("aria-expanded", String(!detail));
    });
    item.append(button);
    return item;
  }

  function gold(label, word) {
    const span = make("span", "gold");
    span.append("gold ", make("i", `swatch l${label % 7}`), word || (data.labels[label] ?? "no label"));
    return span;
  }

  function prompts(at) {
    const place = data.textAt.get(at), size = data.templates.length;
    if (place === undefined) return make("p", "quiet", "The runs kept no prompts for this row.");
    const all = make("ol", "prompts");
    for (const t of [...found.scope].sort((x, y) => x - y)) {
      const item = make("li"), choices = make("p", "choices");
      item.append(make("p", "template", data.templates[t]));
      for (const [names, prompt, written] of data.prompts[place][t]) {
        if (names.length) item.append(make("p", "quiet", `Prompt of ${names.join(", ")}`));
        item.append(make("pre", "", prompt));
        for (const [name, text] of written) {
          const line = make("p", "written");
          line.append(make("b", "", `${name} wrote`), ` ${text}`);
          item.append(line);
        }
      }
      item.append(choices);
      data.choices[data.choiceOf[place]][t].forEach((text, label) => {
        const marks = sides().filter((run) => found.answer(run, at, t) === label)
          .map((run) => data.runs[run] + (data.right ? "" : ` ${(data.margins[run][at * size + t] / 10).toFixed(1)}`));
        const choice = make("span", marks.length ? "chosen" : "");
        choice.append(make("i", `swatch l${label % 7}`), text);
        if (label === data.gold[at]) marks.push("gold");
        for (const mark of marks) choice.append(" ", make("small", "", mark));
        if (marks.length || (!data.right && data.labels.length <= 20)) choices.append(choice);
      });
      all.append(item);
    }
    return all;
  }

  // Keys: the arrows go through a table's buttons and through the list; Escape closes, and focus goes back.
  function arrows(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const button = event.target.closest("button.show, button.item");
    if (!step || !button) return;
    let next;
    if (button.className === "item") {
      const items = [...list.querySelectorAll(".item")];
      next = step[0] ? items[items.indexOf(button) + step[0]] : null;
    } else {
      const cell = button.closest("td, th"), rows = cell && [...cell.closest("table").rows];
      for (let y = cell ? cell.parentNode.rowIndex + step[0] : -1, x = cell ? cell.cellIndex + step[1] : 0;
        rows?.[y]?.cells[x] && !next; y += step[0], x += step[1]) next = rows[y].cells[x].querySelector("button.show");
    }
    if (!next) return;
    event.preventDefault();
    if (next.className !== "item") [button.tabIndex, next.tabIndex] = [-1, 0];
    next.focus();
  }

  function upgrade(element) {
    const button = make("button", "show");
    button.type = "button";
    button.addEventListener("click", () => open(new URLSearchParams(element.dataset.show.slice(6))));
    if (element.namespaceURI.endsWith("svg")) {  // over a bar's part
      button.classList.add("over");
      button.title = element.textContent;
      button.setAttribute("aria-label", element.textContent);
      [button.style.left, button.style.width] = [element.getAttribute("x"), element.getAttribute("width")];
      element.ownerSVGElement.parentNode.append(button);
    } else {
      button.append(...element.childNodes);
      element.append(button);
    }
  }

  // A search field that opens the rows with this text.
  function search(link) {
    const form = make("form", "search"), text = make("input"), button = make("button", "", "Search");
    text.type = "search";
    text.placeholder = "text or id";
    text.setAttribute("aria-label", "Search the rows");
    form.append(text, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const query = new URLSearchParams(link.slice(6));
      query.set("q", text.value);
      open(query);
    });
    return form;
  }

  document.querySelectorAll("[data-show]").forEach(upgrade);
  for (const each of document.querySelectorAll(".all")) {
    each.append(" ", search(each.querySelector("[data-show]").dataset.show), make("span", "quiet", " Select an underlined number, a bar or a template name to list its rows."));
  }
  for (const table of document.querySelectorAll("main table")) {
    [...table.querySelectorAll("button.show:not(.over)")].forEach((button, at) => { button.tabIndex = at ? -1 : 0; });
  }
  document.addEventListener("keydown", arrows);
  dialog.addEventListener("change", update);
  field.q.addEventListener("input", update);
  more.addEventListener("click", extend);
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.querySelector(".clear").addEventListener("click", () => open(new URLSearchParams({ g: group })));
  dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  const restore = () => location.hash.startsWith("#show?") && open(new URLSearchParams(location.hash.slice(6)));
  addEventListener("hashchange", restore);
  restore();
})();
