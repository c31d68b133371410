// Elements by id, and new ones. Text is always set as text: nothing that an app or a job says becomes markup.

export const byId = (id) => {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
};

/** A new element. Names that the element has become properties (className, value...), others attributes; undefined is left out. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Setting the same text again would be read aloud again. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}
