// The newest bytes of what a run writes, as they come, shown as a terminal shows them; the whole of it on request.

import { address, getBytes } from "./api.js";
import { byId, setText } from "./dom.js";
import { LONGEST_SEQUENCE, afterSequence, showTerminal } from "./terminal.js";
import { size } from "./words.js";

/** So much of the end of a stream is shown, bytes. */
const NEWEST = 4096;
/** Kept before them: a control sequence that begins there is not shown as text. */
const HELD = NEWEST + LONGEST_SEQUENCE;
/** More than this is a file to be saved, not text on a page. */
const WHOLE_AT_MOST = 4 * 1024 * 1024;

/** onWish(): what is listened to has changed. onError(ApiError). */
export function logView({ onWish, onError }) {
  const place = byId("log");
  const stream = byId("stream");
  const whole = byId("whole");
  let run = null;
  let serial = 0;
  let attempt = 0;
  let bytes = new Uint8Array(0);
  let all = false;
  let end = 0;

  function clear() {
    bytes = new Uint8Array(0);
    all = false;
    end = 0;
    whole.textContent = "Show the whole log";
    refresh();
  }

  /** said: {key, simulationType, simulationId, model, serial}, or null. */
  function show(said) {
    if (said?.key === run?.key && said?.serial === run?.serial) return;
    const other = said?.key !== run?.key;
    run = said;
    if (said && said.serial !== serial) clear();
    serial = said?.serial ?? 0;
    if (other) onWish();
  }

  /** What to listen to, for the stream of news. */
  const wish = () => (run ? { logs: run.key, stream: stream.value, tail: String(HELD) } : {});

  /** A piece of output: {computeJid, computeJobSerial, attempt, stream, offset, nextOffset, dropped, text, end}. */
  function piece(said) {
    if (!run || said.computeJid !== run.key || said.stream !== stream.value || said.computeJobSerial < serial) return;
    const newerAttempt = attempt > 0 && said.attempt > attempt;
    if (said.computeJobSerial > serial || newerAttempt) {
      serial = said.computeJobSerial;
      clear();
    }
    attempt = said.attempt;
    if (said.nextOffset < end) return;
    const skipped = said.dropped ? `\n[${said.dropped} bytes are not kept]\n` : "";
    add(new TextEncoder().encode(skipped));
    add(unheard(said));
    end = said.nextOffset;
    refresh();
  }

  /** What of a piece is new: a stream that was opened anew may tell again what was asked for meanwhile. */
  function unheard({ text, offset, nextOffset }) {
    const told = new TextEncoder().encode(text);
    // what is no text comes with signs in its place, which are not as long: it cannot be cut
    const asWritten = told.length === nextOffset - offset;
    return asWritten && offset < end ? told.subarray(end - offset) : told;
  }

  function add(more) {
    const joined = new Uint8Array(bytes.length + more.length);
    joined.set(bytes);
    joined.set(more, bytes.length);
    const keep = all ? WHOLE_AT_MOST : HELD;
    bytes = joined.slice(Math.max(0, joined.length - keep));
  }

  function refresh() {
    const atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 24;
    const first = firstShown();
    showTerminal(place, new TextDecoder().decode(bytes.subarray(first)));
    if (atEnd) place.scrollTop = place.scrollHeight;
    whole.hidden = end === 0;
    setText(byId("log-note"), noted(bytes.length - first));
  }

  /** The rest of a character or of a control sequence that was cut is not shown. */
  function firstShown() {
    const from = all ? 0 : Math.max(0, bytes.length - NEWEST);
    let first = afterSequence(bytes, from);
    while (first < Math.min(from + 4, bytes.length) && (bytes[first] & 0xc0) === 0x80) first += 1;
    return first;
  }

  function noted(length) {
    if (!run) return "";
    if (end === 0) return "Nothing has been written yet.";
    return end <= length ? `All ${size(end)}.` : `The newest ${size(length)} of ${size(end)}.`;
  }

  const wholeAddress = (query = {}) =>
    address(`run-log/${run.simulationType}/${run.simulationId}/${run.model}`, { stream: stream.value, ...query });

  /** The newest bytes by asking, for when the stream of news is not open. */
  async function ask() {
    if (!run?.serial || all) return;
    const mine = run;
    const { headers, bytes: text } = await getBytes(wholeAddress({ tail: String(HELD), computeJobSerial: String(run.serial) }));
    if (mine !== run) return;
    bytes = text;
    end = Number(headers.get("X-Jobscribe-Offset") ?? 0) + text.length;
    refresh();
  }

  async function showWhole() {
    if (all) {
      all = false;
      bytes = bytes.slice(Math.max(0, bytes.length - HELD));
      whole.textContent = "Show the whole log";
      return refresh();
    }
    if (end > WHOLE_AT_MOST) return void window.open(wholeAddress(), "_blank", "noopener");
    const { bytes: text } = await getBytes(wholeAddress({ computeJobSerial: String(serial) }));
    all = true;
    bytes = text;
    end = Math.max(end, text.length);
    whole.textContent = "Show only the newest";
    place.scrollTop = place.scrollHeight;
    return refresh();
  }

  stream.addEventListener("change", () => {
    clear();
    onWish();
  });
  whole.addEventListener("click", () => showWhole().catch(onError));
  return { show, wish, piece, ask };
}
