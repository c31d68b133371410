/** The frame of every page: bar, navigation, state of the connection, notices. */

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { link } from "../live.ts";
import { isAdmin, me } from "../me.ts";
import { ENTRIES } from "../navigation.ts";
import { path, site } from "../site.ts";
import { sentence } from "../text/format.ts";
import { Icon } from "./icons.tsx";

const LINKS = {
  opening: ["Connecting", ""],
  live: ["Live", "Changes appear at once."],
  asking: ["Every 5 s", "This page has no live updates; it asks every 5 seconds."],
  full: [
    "Every 5 s",
    "You have too many pages with live updates; this one asks every 5 seconds. Close another one.",
  ],
  signedOut: ["Signed out", "Sign in again to see changes. Jobs go on."],
  lost: ["Connection lost", "Jobs go on. The page connects again by itself."],
} as const;

/** Time before a lost connection is shown: most are back at once. */
const PATIENCE_MS = 1500;

export interface Notice {
  id: number;
  text: string;
  bad: boolean;
  action?: { label: string; run: () => void };
}

export const notices = signal<Notice[]>([]);
let lastNotice = 0;
const KEPT_MS = 8000;

/** Show a notice. One about a failure stays until it is closed. */
export function notify(text: string, bad = false, action?: Notice["action"]): void {
  lastNotice += 1;
  const id = lastNotice;
  notices.value = [...notices.value, { id, text, bad, ...(action ? { action } : {}) }];
  if (!bad) setTimeout(() => dismiss(id), KEPT_MS);
}

const dismiss = (id: number): void => {
  notices.value = notices.value.filter((n) => n.id !== id);
};

function useShownLink(): keyof typeof LINKS {
  const [shown, setShown] = useState<keyof typeof LINKS>(link.value);
  const current = link.value;
  useEffect(() => {
    const timer = setTimeout(() => setShown(current), current === "lost" ? PATIENCE_MS : 0);
    return () => clearTimeout(timer);
  }, [current]);
  return shown;
}

function LinkState(): JSX.Element {
  const shown = useShownLink();
  const [word, hint] = LINKS[shown];
  return (
    <p class="link-state" data-link={shown} role="status" title={hint}>
      {word}
    </p>
  );
}

function Notices(): JSX.Element {
  return (
    <div class="notices" aria-live="polite">
      {notices.value.map((notice) => (
        <div class={notice.bad ? "notice bad" : "notice"} key={notice.id}>
          <p>{notice.text}</p>
          {notice.action && (
            <button
              type="button"
              onClick={() => {
                dismiss(notice.id);
                notice.action?.run();
              }}
            >
              {notice.action.label}
            </button>
          )}
          <button type="button" class="plain" aria-label="Close" onClick={() => dismiss(notice.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}

function Navigation(): JSX.Element {
  // without a router (nobody is signed in) there is no path
  const { path: current = "" } = useLocation();
  const shown = ENTRIES.filter((entry) => !entry.admin || isAdmin());
  return (
    <>
      {shown.map((entry) => {
        const address = path(entry.path);
        const here = current === address || current.startsWith(`${address}/`);
        return (
          <a key={address} href={address} aria-current={here ? "page" : undefined}>
            {entry.name}
          </a>
        );
      })}
    </>
  );
}

function SignOut(): JSX.Element {
  const signOut = async (): Promise<void> => {
    const headers = { "Content-Type": "application/json" };
    const request = { method: "POST", headers, body: "{}", credentials: "same-origin" } as const;
    const answer = await fetch(site.signOut, request).catch(() => undefined);
    if (answer?.ok || answer?.status === 401) window.location.assign(site.home || path("/jobs"));
    else notify("You are not signed out: the site does not answer. Try again.", true);
  };
  return (
    <button type="button" class="plain sign-out" onClick={() => void signOut()}>
      Sign out
    </button>
  );
}

function DrainBanner(): JSX.Element | null {
  const drain = me.value.siteDrain;
  if (!drain) return null;
  return (
    <p class="strip" role="status">
      <strong>Maintenance:</strong> this site starts no new runs. You can submit, and runs wait;
      what runs goes on. {sentence(drain.reason)}
    </p>
  );
}

/** still: the page shows nothing that changes, and has no stream. */
export function Frame({
  title,
  still = false,
  children,
}: {
  title: string;
  still?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  useEffect(() => {
    document.title = `${title} · ${site.title}`;
    // on a narrow screen the navigation scrolls
    const here = document.querySelector<HTMLElement>(".bar nav [aria-current]");
    const bar = here?.parentElement;
    if (bar)
      bar.scrollLeft = here.offsetLeft + (here.offsetWidth - bar.clientWidth) / 2 - bar.offsetLeft;
  }, [title]);
  const lost = useShownLink() === "lost" && !still;
  return (
    <>
      <a class="skip" href="#main" target="_self">
        Skip to the content
      </a>
      <header class="bar">
        <a class="mark" href={path("/jobs")}>
          {site.title}
        </a>
        <nav aria-label="Pages">
          <Navigation />
        </nav>
        {!still && <LinkState />}
        {site.user && site.signOut && <SignOut />}
      </header>
      {lost && (
        <p class="strip" role="status">
          Connection lost, resuming. What you see may be out of date; jobs go on.
        </p>
      )}
      <DrainBanner />
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <Notices />
    </>
  );
}
