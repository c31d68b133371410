/**
 * The element <terminal-style>, which the build puts in the place of the <style> elements of xterm: the
 * policy of the pages forbids inline styles, and a constructed style sheet is no inline style.
 */

class TerminalStyle extends HTMLElement {
  readonly #sheet = new CSSStyleSheet();

  override get textContent(): string {
    return "";
  }

  override set textContent(css: string) {
    this.#sheet.replaceSync(css);
  }

  connectedCallback(): void {
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.#sheet];
  }

  disconnectedCallback(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== this.#sheet);
  }
}

customElements.define("terminal-style", TerminalStyle);
