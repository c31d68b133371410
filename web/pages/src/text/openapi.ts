/** An OpenAPI document as the reference shows it: operations in groups, schemas in words. Pure. */

export interface Schema {
  $ref?: string;
  title?: string;
  description?: string;
  type?: string | string[];
  format?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  items?: Schema | false;
  prefixItems?: Schema[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  required?: string[];
}

interface Media {
  schema?: Schema;
}

export interface Response {
  description?: string;
  content?: Record<string, Media>;
}

export interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema?: Schema;
}

interface RawOperation {
  operationId?: string;
  summary?: string;
  description?: string;
  parameters?: Parameter[];
  requestBody?: { required?: boolean; content?: Record<string, Media> };
  responses?: Record<string, Response>;
}

export interface OpenApi {
  info: { title: string; version: string; description?: string };
  paths: Record<string, Record<string, RawOperation>>;
  components?: { schemas?: Record<string, Schema> };
}

export interface Operation extends RawOperation {
  /** Names it in addresses: "post /api/job-search". */
  id: string;
  method: string;
  path: string;
  group: string;
}

const METHODS = ["get", "post", "put", "delete", "patch", "head"];
/** A group of fewer operations is not worth a heading. */
const LEAST = 2;
const OTHER = "Others";

/** Return the operations, ordered by group. base: a prefix that is in all paths. */
export function operations(document: OpenApi, base = ""): Operation[] {
  const found = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([method]) => METHODS.includes(method))
      .map(([method, operation]) => ({
        ...operation,
        id: `${method} ${path}`,
        method: method.toUpperCase(),
        path,
        group: groupOf(path.startsWith(base) ? path.slice(base.length) : path),
      })),
  );
  const counts = new Map<string, number>();
  for (const { group } of found) counts.set(group, (counts.get(group) ?? 0) + 1);
  for (const operation of found) {
    if ((counts.get(operation.group) ?? 0) < LEAST) operation.group = OTHER;
  }
  return found.sort(
    (a, b) =>
      Number(a.group === OTHER) - Number(b.group === OTHER) ||
      a.group.localeCompare(b.group) ||
      a.path.localeCompare(b.path),
  );
}

/** Return the group of a path: what it is about, as "job" of /api/job-search. */
function groupOf(path: string): string {
  if (/^\/api\/v\d/.test(path)) return "OpenPAI";
  const part = path.replace(/^\/api\//, "/").split("/")[1] ?? "";
  if (part === "page-data") return "Pages";
  return (/^[a-z]+?(?=s?(?:-|$))/.exec(part)?.[0] ?? part) || OTHER;
}

/** Return the operations that have all words in path, summary or description. */
export function matching(all: Operation[], words: string): Operation[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return all.filter((o) => {
    const text = `${o.method} ${o.path} ${o.summary ?? ""} ${o.description ?? ""}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

/** Return the schema that a reference names, and its name. */
export function resolved(document: OpenApi, schema: Schema): { name: string; schema: Schema } {
  const name = schema.$ref?.split("/").pop() ?? "";
  if (!name) return { name: "", schema };
  return { name, schema: document.components?.schemas?.[name] ?? {} };
}

/** Return a type in words: "array of text, at most 32", `"a" or "b"`, "number or null". */
export function typeText(document: OpenApi, given: Schema): string {
  const { name, schema } = resolved(document, given);
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.map((s) => typeText(document, s)).join(" or ");
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") {
    const items = schema.items ? typeText(document, schema.items) : "values";
    return `array of ${items}${range(schema.minItems, schema.maxItems, "at least", " items")}`;
  }
  if (name && schema.properties) return name;
  if (schema.type === "object") return "object";
  const types = [schema.type ?? "any value"].flat().join(" or ");
  return `${types}${bounds(schema)}`;
}

function bounds(schema: Schema): string {
  if (schema.format === "binary") return " (bytes)";
  const { exclusiveMinimum: above, maximum } = schema;
  if (above !== undefined) return range(above, maximum, "above", "");
  return (
    range(schema.minimum, maximum, "at least", "") ||
    range(schema.minLength, schema.maxLength, "at least", " characters")
  );
}

/** Return a range in words: ", 1 to 64 characters". */
function range(
  low: number | undefined,
  high: number | undefined,
  least: string,
  unit: string,
): string {
  if (low !== undefined && high !== undefined && least !== "above")
    return `, ${low} to ${high}${unit}`;
  const found = [
    low === undefined ? "" : `${least} ${low}`,
    high === undefined ? "" : `at most ${high}`,
  ].filter(Boolean);
  return found.length ? `, ${found.join(" and ")}${unit}` : "";
}

/** Return the object that a schema describes, also within an array or beside null; null for others. */
export function objectOf(
  document: OpenApi,
  given: Schema,
): { name: string; schema: Schema } | null {
  const found = resolved(document, given);
  if (found.schema.properties) return found;
  const inner = found.schema.items || found.schema.anyOf?.find((s) => s.type !== "null");
  return inner ? objectOf(document, inner) : null;
}

const DEEPEST = 4;

/** Return an example of a value: the required fields alone. */
export function example(document: OpenApi, given: Schema, depth = 0): unknown {
  const { schema } = resolved(document, given);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const either = schema.anyOf ?? schema.oneOf;
  if (either) {
    const first = either.find((s) => s.type !== "null");
    return first ? example(document, first, depth) : null;
  }
  switch ([schema.type].flat()[0]) {
    case "object":
      return exampleObject(document, schema, depth);
    case "array":
      return schema.items && schema.minItems && depth < DEEPEST
        ? [example(document, schema.items, depth + 1)]
        : [];
    case "integer":
    case "number":
      return (
        schema.minimum ?? (schema.exclusiveMinimum !== undefined ? schema.exclusiveMinimum + 1 : 0)
      );
    case "boolean":
      return false;
    case "null":
      return null;
    default:
      return "…";
  }
}

function exampleObject(document: OpenApi, schema: Schema, depth: number): object {
  if (depth >= DEEPEST) return {};
  return Object.fromEntries(
    (schema.required ?? []).map((name) => [
      name,
      example(document, schema.properties?.[name] ?? {}, depth + 1),
    ]),
  );
}

/** Return the schema of the body of a request in JSON. */
export const bodyOf = (operation: Operation): Schema | undefined =>
  operation.requestBody?.content?.["application/json"]?.schema;

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

/** Return a command line for the request. The token stays in a variable. */
export function curl(document: OpenApi, operation: Operation, site: string): string {
  const query = (operation.parameters ?? [])
    .filter((p) => p.in === "query" && p.required)
    .map((p) => `${p.name}=…`)
    .join("&");
  const lines = [`curl -sS ${quoted(`${site}${operation.path}${query && `?${query}`}`)}`];
  if (operation.method !== "GET")
    lines[0] = lines[0]?.replace("-sS", `-sS -X ${operation.method}`) ?? "";
  lines.push(`  -H "Authorization: Bearer $TOKEN"`);
  const body = bodyOf(operation);
  if (body) {
    lines.push(`  -H 'Content-Type: application/json'`);
    lines.push(`  -d ${quoted(JSON.stringify(example(document, body)))}`);
  } else if (operation.requestBody) lines.push("  --data-binary @FILE");
  return lines.join(" \\\n");
}

/** Return the error codes of a response: "notFound or notHere". */
export const codesOf = (response: Response): string[] =>
  (response.description ?? "").split(" or ").filter((code) => /^[a-z]\w*$/i.test(code));
