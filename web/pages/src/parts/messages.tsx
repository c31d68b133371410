/** Designed states of data: empty, loading, error. */

import type { ComponentChildren, JSX } from "preact";
import type { ApiError } from "../api.ts";
import { site } from "../site.ts";
import { sentence } from "../text/format.ts";

export function ErrorMessage({
  error,
  again,
}: {
  error: ApiError;
  again?: () => void;
}): JSX.Element {
  if (error.isSignedOut) return <SignedOut />;
  return (
    <div class="message error-message" role="alert">
      <p>
        <strong>{sentence(error.message)}</strong> {sentence(error.advice)}
      </p>
      {error.retry && <p class="soft">This page keeps trying.</p>}
      {again && !error.retry && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

export function SignedOut(): JSX.Element {
  return (
    <div class="message" role="alert">
      <p>
        <strong>You are not signed in.</strong>
      </p>
      {site.home && (
        <p>
          <a href={site.home} target="_self">
            Sign in
          </a>
        </p>
      )}
    </div>
  );
}

export function Empty({
  title,
  children,
}: {
  title: string;
  children?: ComponentChildren;
}): JSX.Element {
  return (
    <div class="message">
      <p>
        <strong>{title}</strong>
      </p>
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }): JSX.Element {
  return (
    <p class="message soft loading" role="status">
      Loading {what} …
    </p>
  );
}
