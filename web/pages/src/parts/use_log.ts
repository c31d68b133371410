/** The output of a task, read from the stream or by requests. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ask } from "../api.ts";
import type { JobView } from "../text/job_view.ts";
import {
  isOther,
  isRepeated,
  type LogPiece,
  type LogPlace,
  NO_PLACE,
  placeAfter,
} from "../text/log_place.ts";
import { TerminalText } from "../text/terminal.ts";
import type { LogState } from "./log.tsx";

/** Bytes of earlier output with which the log begins. */
export const TAIL = 262_144;

const noLog = (): LogState => ({ text: new TerminalText(), skipped: 0, ended: false, read: false });

/** Collect the output: from the stream, or by requests where the site has no stream. */
export function useLog(
  jid: string,
  view: JobView,
  key: string,
): { state: LogState; add: (piece: LogPiece) => void; ask: (serial: number) => Promise<void> } {
  const [state, setState] = useState<LogState>(noLog);
  const place = useRef<LogPlace>(NO_PLACE);
  useEffect(() => {
    setState(noLog());
    place.current = NO_PLACE;
  }, [key]);
  const add = (piece: LogPiece): void => {
    const begins = isOther(place.current, piece);
    if (isRepeated(place.current, piece)) return;
    place.current = placeAfter(piece);
    setState((last) => {
      const log = begins ? noLog() : last;
      log.text.append(piece.text);
      return {
        text: log.text,
        skipped: begins ? piece.offset : log.skipped,
        ended: piece.end,
        read: true,
      };
    });
  };
  const askForMore = async (serial: number, fromTail = false): Promise<void> => {
    if (view.tab !== "log" || !serial) return;
    const { next } = place.current;
    const goesOn = serial === place.current.serial && !fromTail;
    const response = await ask("/page-data/job-log", {
      computeJid: jid,
      computeJobSerial: serial,
      stream: view.stream,
      attempt: view.attempt,
      ...(view.role ? { role: view.role, index: view.index } : {}),
      ...(goesOn ? { offset: next } : { tail: TAIL }),
    }).catch(() => undefined);
    if (!response) return;
    const number = (name: string): number => Number(response.headers.get(`X-Jobscribe-${name}`));
    const piece: LogPiece = {
      computeJobSerial: serial,
      attempt: number("Attempt"),
      offset: number("Offset"),
      nextOffset: number("Next-Offset"),
      dropped: number("Dropped"),
      text: await response.text(),
      end: response.headers.get("X-Jobscribe-End") === "true",
    };
    // the offset was that of an earlier attempt
    if (goesOn && isOther(place.current, piece)) return askForMore(serial, true);
    add(piece);
  };
  return { state, add, ask: askForMore };
}
