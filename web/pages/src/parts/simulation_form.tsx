/** The form of a model: one field for each of its parameters, and where it runs. */

import type { ComponentChildren, JSX } from "preact";
import type { Cluster, Field, Model } from "../apps.ts";
import {
  CLUSTER,
  clusterOf,
  mostOf,
  partitionName,
  partitionOf,
  partitionText,
  type Texts,
  WISHES,
} from "../text/form.ts";
import { boundsText } from "../text/simulation.ts";
import { unitText } from "../text/units.ts";

/** A longer unit is beside the bounds, not in the input. */
const LONG_UNIT = 9;

export interface FormProps {
  model: Model;
  clusters: Cluster[];
  texts: Texts;
  faults: ReadonlyMap<string, string>;
  onChange: (name: string, text: string | boolean) => void;
}

export function Fields(props: FormProps): JSX.Element {
  const { model, texts, faults, onChange } = props;
  return (
    <>
      {model.fields.map((field) => (
        <Row
          key={field.name}
          name={field.name}
          title={field.title}
          note={boundsText(field)}
          unit={unitText(field.unit ?? "")}
          fault={faults.get(field.name)}
        >
          {(id, described) => (
            <Input
              field={field}
              id={id}
              described={described}
              value={texts[field.name]}
              isWrong={faults.has(field.name)}
              onChange={(text) => onChange(field.name, text)}
            />
          )}
        </Row>
      ))}
      <Where {...props} />
    </>
  );
}

function Row(props: {
  name: string;
  title: string;
  note?: string;
  unit?: string | undefined;
  fault: string | undefined;
  children: (id: string, described: string | undefined) => ComponentChildren;
}): JSX.Element {
  const { title, fault } = props;
  const isLong = (props.unit?.length ?? 0) > LONG_UNIT;
  const unit = isLong ? "" : props.unit;
  const note = [props.note, isLong && props.unit].filter(Boolean).join(" ");
  const id = `field-${props.name}`;
  const described = [note && `${id}-note`, unit && `${id}-unit`, fault && `${id}-wrong`];
  return (
    <div class="value-field">
      <div>
        <label for={id}>{title}</label>
        {note && (
          <p class="soft" id={`${id}-note`}>
            {note}
          </p>
        )}
      </div>
      <div class="with-unit">
        {props.children(id, described.filter(Boolean).join(" ") || undefined)}
        {unit && (
          <span class="unit soft" id={`${id}-unit`}>
            {unit}
          </span>
        )}
      </div>
      {fault && (
        <p class="value-wrong" id={`${id}-wrong`}>
          {fault}
        </p>
      )}
    </div>
  );
}

function Input(props: {
  field: Field;
  id: string;
  described: string | undefined;
  value: string | boolean | undefined;
  isWrong: boolean;
  onChange: (text: string | boolean) => void;
}): JSX.Element {
  const { field, id, value, onChange } = props;
  const shared = { id, "aria-describedby": props.described, "aria-invalid": props.isWrong };
  if (field.choices?.length) {
    return (
      <select {...shared} value={String(value)} onChange={(e) => onChange(e.currentTarget.value)}>
        {field.choices.map((choice) => (
          <option key={choice}>{choice}</option>
        ))}
      </select>
    );
  }
  if (typeof field.default === "boolean") {
    return (
      <input
        {...shared}
        type="checkbox"
        checked={value === true}
        onChange={(e) => onChange(e.currentTarget.checked)}
      />
    );
  }
  return (
    <input
      {...shared}
      type="text"
      inputMode={typeof field.default === "number" ? "decimal" : "text"}
      autoComplete="off"
      spellcheck={false}
      value={String(value ?? "")}
      onInput={(e) => onChange(e.currentTarget.value)}
    />
  );
}

function Where(props: FormProps): JSX.Element | null {
  const { clusters, texts, faults, onChange } = props;
  if (clusters.length === 0) return null;
  const cluster = clusterOf(clusters, texts);
  return (
    <>
      <Row name="where" title="Where" fault={undefined}>
        {(id) => (
          <select
            id={id}
            value={cluster?.cluster ?? ""}
            onChange={(e) => onChange(CLUSTER, e.currentTarget.value)}
          >
            <option value="">this machine</option>
            {clusters.map((c) => (
              <option value={c.cluster} key={c.cluster}>
                cluster {c.cluster}
              </option>
            ))}
          </select>
        )}
      </Row>
      {cluster && (
        <fieldset class="value-fields">
          <legend class="hidden">Resources of the cluster</legend>
          <PartitionRow {...props} cluster={cluster} />
          <Row name="sbatchProject" title="Account" fault={faults.get("sbatchProject")}>
            {(id, described) => (
              <Text
                {...props}
                name="sbatchProject"
                id={id}
                described={described}
                list={cluster.accounts ?? []}
              />
            )}
          </Row>
          {WISHES.map((wish) => {
            const most = mostOf(wish, cluster, partitionOf(cluster, texts));
            return (
              <Row
                key={wish.name}
                name={wish.name}
                title={wish.title}
                note={most ? `at most ${Math.round(most * 100) / 100}` : ""}
                unit={wish.unit}
                fault={faults.get(wish.name)}
              >
                {(id, described) => (
                  <Text {...props} name={wish.name} id={id} described={described} isNumber />
                )}
              </Row>
            );
          })}
          <p class="soft note" role="status">
            {partitionText(cluster, partitionOf(cluster, texts))}
          </p>
        </fieldset>
      )}
    </>
  );
}

function PartitionRow(props: FormProps & { cluster: Cluster }): JSX.Element {
  const { cluster, texts, faults, onChange } = props;
  return (
    <Row name="sbatchQueue" title="Partition" fault={faults.get("sbatchQueue")}>
      {(id, described) =>
        cluster.partitions ? (
          <select
            id={id}
            aria-describedby={described}
            value={partitionName(cluster, texts)}
            onChange={(e) => onChange("sbatchQueue", e.currentTarget.value)}
          >
            <option value="">the cluster's own choice</option>
            {cluster.partitions
              .filter((p) => p.up !== false)
              .map((p) => (
                <option value={p.name} key={p.name}>
                  {p.name}
                  {p.default ? " (default)" : ""}
                </option>
              ))}
          </select>
        ) : (
          // partitions are known after a sign-in
          <Text {...props} name="sbatchQueue" id={id} described={described} />
        )
      }
    </Row>
  );
}

function Text(
  props: FormProps & {
    name: string;
    id: string;
    described: string | undefined;
    isNumber?: boolean;
    list?: string[];
  },
): JSX.Element {
  const { name, id, texts, faults, list = [] } = props;
  return (
    <>
      <input
        id={id}
        type="text"
        inputMode={props.isNumber ? "decimal" : "text"}
        placeholder="as usual"
        autoComplete="off"
        spellcheck={false}
        aria-invalid={faults.has(name)}
        aria-describedby={props.described}
        list={list.length ? `${id}-known` : undefined}
        value={String(texts[name] ?? "")}
        onInput={(e) => props.onChange(name, e.currentTarget.value)}
      />
      {list.length > 0 && (
        <datalist id={`${id}-known`}>
          {list.map((known) => (
            <option value={known} key={known} />
          ))}
        </datalist>
      )}
    </>
  );
}
