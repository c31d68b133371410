// The form of a model: one row for each of its fields, with its unit and bounds. Knows what was typed, and says what is wrong with it.

import { element } from "./dom.js";

/** Fills `place`. Returns {values(), set(values), mark(name, sentence), clear()}. values() is null where a value will not do. */
export function fieldsForm(place, fields) {
  const rows = fields.map(fieldRow);
  place.replaceChildren(...rows.map((r) => r.row));
  place.hidden = rows.length === 0;

  function clear() {
    for (const r of rows) r.say("");
  }

  function values() {
    clear();
    const wrong = rows.filter((r) => !r.check());
    if (wrong.length) {
      wrong[0].input.focus();
      return null;
    }
    return Object.fromEntries(rows.map((r) => [r.field.name, r.read()]));
  }

  function set(given) {
    clear();
    for (const r of rows) r.write(given[r.field.name] ?? r.field.default);
  }

  function mark(name, sentence) {
    const row = rows.find((r) => r.field.name === name);
    if (!row) return false;
    row.say(sentence);
    row.input.focus();
    return true;
  }

  set({});
  return { values, set, mark, clear };
}

function fieldRow(field) {
  const id = `field-${field.name}`;
  const input = inputFor(field, id);
  const isNumber = typeof field.default === "number";
  const wrong = element("p", { className: "wrong", id: `${id}-wrong`, hidden: true });
  const label = element("label", { htmlFor: id }, field.title);
  if (field.unit) label.append(element("small", {}, field.unit));
  const row = element("div", { className: "row" }, label, element("div", { className: "value" }, input), wrong);

  function say(sentence) {
    wrong.textContent = sentence;
    wrong.hidden = !sentence;
    if (sentence) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", wrong.id);
    } else {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
  }

  function check() {
    if (input.checkValidity()) return true;
    say(isNumber ? `This must be a number${bounds(field)}.` : "This value will not do.");
    return false;
  }

  function read() {
    if (typeof field.default === "boolean") return input.checked;
    return isNumber ? Number(input.value) : input.value;
  }

  function write(value) {
    if (typeof field.default === "boolean") input.checked = Boolean(value);
    else input.value = String(value);
  }

  return { field, row, input, say, check, read, write };
}

function inputFor(field, id) {
  const choices = field.choices ?? [];
  if (choices.length) return element("select", { id }, ...choices.map((c) => element("option", { value: c }, c)));
  if (typeof field.default === "boolean") return element("input", { id, type: "checkbox" });
  if (typeof field.default === "number") {
    // whether it must be whole only the app knows; it says so
    const input = element("input", { id, type: "number", step: "any", required: true, inputMode: "decimal", title: bounds(field).trim() });
    if (known(field.minimum)) input.min = String(field.minimum);
    if (known(field.maximum)) input.max = String(field.maximum);
    return input;
  }
  return element("input", { id, type: "text", spellcheck: false });
}

const known = (bound) => bound !== null && bound !== undefined;

function bounds(field) {
  if (known(field.minimum) && known(field.maximum)) return ` between ${field.minimum} and ${field.maximum}`;
  if (known(field.minimum)) return ` of at least ${field.minimum}`;
  return known(field.maximum) ? ` of at most ${field.maximum}` : "";
}
