/** The terminal emulator, xterm, with the colours of the page. It is loaded with the first terminal. */

import "./style_stand_in.ts";
import { FitAddon } from "@xterm/addon-fit";
import { type ITheme, Terminal } from "@xterm/xterm";
import type { ShellSize } from "../shell.ts";

const SCROLLBACK_LINES = 5000;
/** WCAG 1.4.3: programs choose colours without knowing the background. */
const CONTRAST = 4.5;
const MOST_CELLS = 4096;
const ANSI = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

export interface TerminalEvents {
  onText: (text: string) => void;
  onSize: (size: ShellSize) => void;
  onSelect: (hasSelection: boolean) => void;
  /** The key that leaves the terminal was pressed. */
  onLeave: () => void;
  onCopied: (text: string) => void;
}

export class TerminalView {
  readonly #terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #observer = new ResizeObserver(() => this.#fitNow());
  readonly #dark = window.matchMedia("(prefers-color-scheme: dark)");
  readonly #colours = (): void => {
    this.#terminal.options.theme = themeOf(this.box);
  };

  constructor(
    private readonly box: HTMLElement,
    private readonly events: TerminalEvents,
  ) {
    const style = getComputedStyle(box);
    this.#terminal = new Terminal({
      cursorBlink: false,
      fontFamily: style.fontFamily,
      fontSize: Number.parseFloat(style.fontSize),
      // with 1, underscores of some fonts are cut off
      lineHeight: 1.2,
      // links in output would lead to other hosts
      linkHandler: { activate: () => {} },
      minimumContrastRatio: CONTRAST,
      screenReaderMode: true,
      scrollback: SCROLLBACK_LINES,
      theme: themeOf(box),
    });
    this.#terminal.loadAddon(this.#fit);
    this.#terminal.open(box);
    this.#terminal.attachCustomKeyEventHandler((event) => this.#isForShell(event));
    this.#terminal.onData(events.onText);
    this.#terminal.onResize(({ rows, cols }) => events.onSize({ rows, cols }));
    this.#terminal.onSelectionChange(() => events.onSelect(this.#terminal.hasSelection()));
    this.#fitNow();
    this.#observer.observe(box);
    this.#dark.addEventListener("change", this.#colours);
  }

  get size(): ShellSize {
    const { rows, cols } = this.#terminal;
    return { rows, cols };
  }

  /** Return the lines that are selected. */
  get selected(): string {
    return this.#terminal.getSelection();
  }

  write(data: Uint8Array): Promise<void> {
    return new Promise((resolve) => this.#terminal.write(data, resolve));
  }

  focus(): void {
    this.#terminal.focus();
  }

  /** Accept no more keys. What is shown stays. */
  end(): void {
    this.#terminal.options.disableStdin = true;
    this.#terminal.options.cursorInactiveStyle = "none";
  }

  close(): void {
    this.#observer.disconnect();
    this.#dark.removeEventListener("change", this.#colours);
    this.#terminal.dispose();
  }

  #fitNow(): void {
    // a hidden terminal has no size
    if (this.box.clientWidth === 0 || this.box.clientHeight === 0) return;
    const size = this.#fit.proposeDimensions();
    if (!size || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return;
    this.#terminal.resize(Math.min(size.cols, MOST_CELLS), Math.min(size.rows, MOST_CELLS));
  }

  /** Return whether a key goes to the shell. */
  #isForShell(event: KeyboardEvent): boolean {
    const isControl = event.ctrlKey && !event.altKey && !event.metaKey;
    const key = event.key.toLowerCase();
    if (event.key === "F6" && event.shiftKey) {
      if (event.type === "keydown") this.events.onLeave();
      event.preventDefault();
      return false;
    }
    // the browser pastes
    if (isControl && key === "v") return false;
    const copies = isControl && key === "c" && (event.shiftKey || this.#terminal.hasSelection());
    if (!copies) return true;
    if (event.type === "keydown") {
      const text = this.#terminal.getSelection();
      event.preventDefault();
      this.#terminal.clearSelection();
      if (text) this.events.onCopied(text);
    }
    return false;
  }
}

/** Return the colours that the style sheet has for terminals. */
function themeOf(box: HTMLElement): ITheme {
  const style = getComputedStyle(box);
  const colour = (name: string): string => style.getPropertyValue(`--terminal-${name}`).trim();
  const theme: Record<string, string> = {};
  for (const name of ANSI) {
    theme[name] = colour(name);
    theme[`bright${name[0]?.toUpperCase()}${name.slice(1)}`] = colour(`bright-${name}`);
  }
  const [background, foreground] = [colour("paper"), colour("ink")];
  return {
    ...theme,
    background,
    foreground,
    cursor: foreground,
    cursorAccent: background,
    selectionBackground: colour("selection"),
  };
}
