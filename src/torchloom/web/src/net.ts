// Speaks HTTP with the API: relative addresses, the session cookie, problem documents as errors.
import type { Identity } from "./api";

const BASE = "api/v1";

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export async function ask<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(BASE + path, {
      method,
      signal,
      credentials: "same-origin",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The service does not answer.");
  }
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, sentence(text, answer.status));
  return (text ? JSON.parse(text) : undefined) as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => ask<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body?: unknown) => ask<T>("POST", path, body);

function sentence(text: string, status: number): string {
  try {
    return String(JSON.parse(text).detail);
  } catch {
    return `The service answered with status ${status}.`;
  }
}

export interface Sent {
  kind: string;
  id: string;
  data: unknown;
}

/** Server-sent events of one connection, until it ends or `signal` aborts it. Resumes after `lastId`. */
export async function* stream(path: string, lastId: string, signal: AbortSignal): AsyncGenerator<Sent | null> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const answer = await fetch(BASE + path, { headers, signal, credentials: "same-origin", cache: "no-store" });
  if (!answer.ok || !answer.body) throw new Refused(answer.status, sentence(await answer.text(), answer.status));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const text = rest ? rest + value : value;
    let from = 0;
    let end: number;
    while ((end = text.indexOf("\n\n", from)) >= 0) {
      yield parse(text.slice(from, end));
      from = end + 2;
    }
    rest = text.slice(from);
  }
}

/** One event; null for a comment, which only says that the connection lives. */
function parse(text: string): Sent | null {
  const found: Sent = { kind: "message", id: "", data: undefined };
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) found.kind = line.slice(7);
    else if (line.startsWith("id: ")) found.id = line.slice(4);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!data) return null;
  found.data = JSON.parse(data);
  return found;
}

export const login = (body: { token: string } | { code: string }) => post<Identity>("/login", body);
