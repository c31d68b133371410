/** Markdown as nodes: text stays text, and HTML in it is left out. */

import type { Token, Tokens } from "marked";
import type { ComponentChildren, JSX } from "preact";
import { Example } from "../parts/example.tsx";
import { Scroll } from "../parts/scroll.tsx";
import { path } from "../site.ts";
import { linkOf, pieces, plainText, Slugs } from "../text/docs.ts";

interface Place {
  slugs: Slugs;
  /** Tables so far. */
  tables: number;
  /** What was searched for. */
  pattern: RegExp | null;
}

export function Markdown(props: { tokens: Token[]; pattern: RegExp | null }): JSX.Element {
  return <>{blocks(props.tokens, { slugs: new Slugs(), tables: 0, pattern: props.pattern })}</>;
}

const blocks = (tokens: Token[], place: Place): ComponentChildren =>
  tokens.map((token, n) => <Block key={n} token={token} place={place} />);

const inline = (tokens: Token[] | undefined, place: Place): ComponentChildren =>
  (tokens ?? []).map((token, n) => <Inline key={n} token={token} place={place} />);

function Block({ token, place }: { token: Token; place: Place }): JSX.Element | null {
  switch (token.type) {
    case "heading":
      return <Title token={token as Tokens.Heading} place={place} />;
    case "paragraph":
      return <p>{inline(token.tokens, place)}</p>;
    case "text":
      return <>{token.tokens ? inline(token.tokens, place) : marked(token.text, place)}</>;
    case "code":
      return <Example code={token.text} />;
    case "list":
      return <List token={token as Tokens.List} place={place} />;
    case "table":
      return <Table token={token as Tokens.Table} place={place} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [], place)}</blockquote>;
    case "hr":
      return <hr />;
    default:
      return null;
  }
}

function Title({ token, place }: { token: Tokens.Heading; place: Place }): JSX.Element {
  const text = plainText(token.tokens);
  const id = place.slugs.of(text);
  const content = (
    <>
      {inline(token.tokens, place)}
      {token.depth > 1 && (
        <a class="anchor" href={`#${id}`} aria-label={`Link to ${text}`}>
          #
        </a>
      )}
    </>
  );
  if (token.depth === 1) return <h1 id={id}>{content}</h1>;
  return token.depth === 2 ? <h2 id={id}>{content}</h2> : <h3 id={id}>{content}</h3>;
}

function List({ token, place }: { token: Tokens.List; place: Place }): JSX.Element {
  const items = token.items.map((item, n) => <li key={n}>{blocks(item.tokens, place)}</li>);
  if (!token.ordered) return <ul>{items}</ul>;
  return <ol start={token.start === "" ? 1 : token.start}>{items}</ol>;
}

function Table({ token, place }: { token: Tokens.Table; place: Place }): JSX.Element {
  place.tables += 1;
  const heads = token.header.map((cell) => plainText(cell.tokens)).join(", ");
  return (
    <Scroll label={`Table ${place.tables}: ${heads}`}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, n) =>
              cell.tokens.length ? (
                <th scope="col" key={n}>
                  {inline(cell.tokens, place)}
                </th>
              ) : (
                <td key={n} />
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, n) => (
            <tr key={n}>
              {row.map((cell, m) => (
                <td key={m}>{inline(cell.tokens, place)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Inline({ token, place }: { token: Token; place: Place }): JSX.Element | null {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, place)}</strong>;
    case "em":
      return <em>{inline(token.tokens, place)}</em>;
    case "del":
      return <del>{inline(token.tokens, place)}</del>;
    case "codespan":
      return <code>{marked(token.text, place)}</code>;
    case "br":
      return <br />;
    case "link":
      return <DocLink token={token as Tokens.Link} place={place} />;
    case "image":
      return <span class="soft">{token.text}</span>;
    case "text":
    case "escape":
      return (
        <>
          {"tokens" in token && token.tokens
            ? inline(token.tokens, place)
            : marked(token.text, place)}
        </>
      );
    default:
      return null;
  }
}

function DocLink({ token, place }: { token: Tokens.Link; place: Place }): JSX.Element {
  const { kind, to } = linkOf(token.href);
  const content = inline(token.tokens, place);
  switch (kind) {
    case "here":
      return <a href={to}>{content}</a>;
    case "page":
      return <a href={path(`/docs/${to}`)}>{content}</a>;
    case "away":
      return (
        <a href={to} target="_blank" rel="noreferrer">
          {content}
        </a>
      );
    default:
      return <span title="In the repository, not in these pages">{content}</span>;
  }
}

const marked = (text: string, place: Place): ComponentChildren =>
  pieces(text, place.pattern).map((piece, n) =>
    piece.hit ? <mark key={n}>{piece.text}</mark> : piece.text,
  );
