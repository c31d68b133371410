/** Copies texts, also on a page without encryption, where browsers have no clipboard interface. */

/** Copy a text. Rejects if the browser does not permit it. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const last = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "hidden";
  // in a dialog only its own elements can be selected
  (last?.closest("dialog") ?? document.body).append(field);
  field.focus({ preventScroll: true });
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (last instanceof HTMLElement) last.focus();
  if (!isCopied) throw new Error("the browser does not permit it");
}
