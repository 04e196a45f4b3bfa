// A typed client of a Forebay server. Paths, parameters, bodies and answers are generated from its OpenAPI document
// (`npm run build`); this file adds the key, and a way to have problems thrown.

import createClient, { type Client, type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths };
export type Forebay = Client<paths>;
export type Job = components["schemas"]["JobView"];

/** An answer that is a problem (RFC 9457), thrown by a client with `throwing`. */
export class ForebayProblem extends Error {
  constructor(
    readonly status: number,
    readonly slug: string,
    detail: string,
    readonly retryAfter: number | null,
  ) {
    super(`${status} ${slug}: ${detail}`);
    this.name = "ForebayProblem";
  }
}

export interface Options {
  /** The key of this client: `forebay keys create`. */
  key?: string;
  /** Throw a ForebayProblem instead of returning `error`. */
  throwing?: boolean;
  /** For tests, proxies and timeouts. */
  fetch?: typeof globalThis.fetch;
}

const throwProblems: Middleware = {
  async onResponse({ response }) {
    if (response.ok) return;
    const problem = (await response.clone().json().catch(() => ({}))) as { type?: string; title?: string; detail?: string };
    const slug = (problem.type ?? "").replace("urn:forebay:", "") || "unknown";
    const wait = Number(response.headers.get("retry-after") ?? Number.NaN);
    throw new ForebayProblem(response.status, slug, problem.detail ?? problem.title ?? "", Number.isNaN(wait) ? null : wait);
  },
};

export function connect(url: string, options: Options = {}): Forebay {
  const client = createClient<paths>({
    baseUrl: url,
    headers: options.key === undefined ? {} : { authorization: `Bearer ${options.key}` },
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
  if (options.throwing) client.use(throwProblems);
  return client;
}
