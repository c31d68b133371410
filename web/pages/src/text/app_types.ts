/** What an installed app says about itself, and values of its models. */

export type Value = string | number | boolean;
export type Values = Record<string, Value>;

export interface Field {
  name: string;
  title: string;
  default: Value;
  minimum?: number | null;
  maximum?: number | null;
  unit?: string;
  choices?: string[];
}

export interface Report {
  name: string;
  title: string;
  picture: "curves" | "heatmap" | "points";
}

export interface Model {
  name: string;
  title: string;
  kind: "sequential" | "parallel";
  fields: Field[];
  reports: Report[];
}

export interface AppInfo {
  name: string;
  title?: string;
  version?: string;
  models?: Model[];
  /** The app cannot be loaded. */
  error?: string;
}
