/** Controls of an animation: play, steps, a slider, and whether the newest frame is followed. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons.tsx";

/** Time between two frames at normal speed. */
const STEP_MS = 100;
const SPEEDS = [0.5, 1, 2, 4];

export function Player(props: {
  count: number;
  /** The frame to be shown. */
  frame: number;
  following: boolean;
  /** Return whether all pictures show the frame. */
  isShown: () => boolean;
  /** follow: show the newest frame from now on. isPlaying: another one follows. */
  onGo: (frame: number, follow: boolean, isPlaying: boolean) => void;
}): JSX.Element {
  const { count, frame, following, onGo } = props;
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => {
      const now = latest.current;
      if (!now.isShown()) return;
      if (now.frame < now.count - 1) return now.onGo(now.frame + 1, false, true);
      setPlaying(false);
      now.onGo(now.frame, false, false);
    }, STEP_MS / speed);
    return () => clearInterval(timer);
  }, [playing, speed]);
  const go = (to: number): void => {
    setPlaying(false);
    const at = Math.max(0, Math.min(count - 1, to));
    // the last place of the slider is the newest frame
    onGo(at, at === count - 1, false);
  };
  const play = (): void => {
    setPlaying(!playing);
    if (playing) onGo(frame, false, false);
    else onGo(frame >= count - 1 ? 0 : frame, false, true);
  };
  return (
    <fieldset class="player">
      <legend class="hidden">Animation</legend>
      <button type="button" class="play" onClick={play}>
        <Icon name={playing ? "pause" : "play"} />
        {playing ? "Pause" : "Play"}
      </button>
      <button
        type="button"
        aria-label="Previous frame"
        disabled={frame === 0}
        onClick={() => go(frame - 1)}
      >
        <Icon name="previous" />
      </button>
      <button
        type="button"
        aria-label="Next frame"
        disabled={frame >= count - 1}
        onClick={() => go(frame + 1)}
      >
        <Icon name="next" />
      </button>
      <input
        type="range"
        aria-label="Frame"
        aria-valuetext={`frame ${frame + 1} of ${count}`}
        min={0}
        max={Math.max(0, count - 1)}
        value={frame}
        onInput={(e) => go(Number(e.currentTarget.value))}
      />
      <output class="number frame-number">
        frame {frame + 1} of {count}
      </output>
      <label class="inline">
        <span class="hidden">Speed</span>
        <select value={speed} onChange={(e) => setSpeed(Number(e.currentTarget.value))}>
          {SPEEDS.map((s) => (
            <option value={s} key={s}>
              {s}×
            </option>
          ))}
        </select>
      </label>
      <label class="inline">
        <input
          type="checkbox"
          checked={following}
          onChange={(e) => {
            setPlaying(false);
            onGo(e.currentTarget.checked ? count - 1 : frame, e.currentTarget.checked, false);
          }}
        />
        Newest
      </label>
    </fieldset>
  );
}
