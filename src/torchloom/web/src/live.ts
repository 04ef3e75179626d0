// What is live: one connection for events, and queries that are asked again when an event concerns them, when
// their time has come, and after a connection was lost. Events are never applied to what was read, so none can be
// applied twice; what an answer says is whole.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { EventView } from "./api";
import { get, Refused, stream } from "./net";

export type Standing = "live" | "connecting" | "lost" | "signed-out";

/** A value that components follow. */
export class Cell<T> {
  private readonly followers = new Set<() => void>();
  constructor(private held: T) {}
  get value(): T {
    return this.held;
  }
  set value(next: T) {
    if (next === this.held) return;
    this.held = next;
    for (const follower of [...this.followers]) follower();
  }
  follow(follower: () => void): () => void {
    this.followers.add(follower);
    return () => this.followers.delete(follower);
  }
}

export function useCell<T>(cell: Cell<T>): T {
  const [, again] = useState(0);
  useEffect(() => cell.follow(() => again((n) => n + 1)), [cell]);
  return cell.value;
}

export const standing = new Cell<Standing>("connecting");
export const paused = new Cell(false);
/** When anything was last known to be true, in milliseconds. */
export const asOf = new Cell(0);
/** The clock of the page, for "3 s ago". */
export const now = new Cell(Date.now());
setInterval(() => (now.value = Date.now()), 1000);

type Listener = (event: EventView | null) => void;
const listeners = new Set<Listener>();

/** Be called with every event, and with null when everything must be read anew. */
export function onEvent(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let lastId = "";
let abort: AbortController | null = null;

export async function follow(): Promise<void> {
  abort?.abort();
  const mine = (abort = new AbortController());
  let pause = 250;
  while (!mine.signal.aborted) {
    try {
      let first = true;
      for await (const sent of stream("/events", lastId, mine.signal)) {
        if (first) {
          const was = standing.value;
          standing.value = "live";
          first = false;
          pause = 250;
          if (was !== "live") tell(null);
        }
        asOf.value = Date.now();
        if (sent === null) continue;
        if (sent.id) lastId = sent.id;
        tell(sent.kind === "reset" ? null : (sent.data as EventView));
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error instanceof Refused && error.status === 401) {
        standing.value = "signed-out";
        return;
      }
    }
    if (standing.value === "live") standing.value = "lost";
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())));
    pause = Math.min(pause * 2, 4000);
  }
}

export function unfollow(): void {
  abort?.abort();
  lastId = "";
}

function tell(event: EventView | null): void {
  if (paused.value) return;
  for (const listener of [...listeners]) listener(event);
}

export interface Query<T> {
  data: T | undefined;
  /** Why the newest try failed; what was read before stays. */
  error: Refused | null;
  at: number;
  refresh: () => void;
}

export interface Options {
  /** Ask again after so many milliseconds. */
  every?: number;
  /** Whether an event concerns it; by default all do. */
  on?: (event: EventView) => boolean;
}

export function useQuery<T>(path: string | null, { every = 0, on }: Options = {}): Query<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; error: Refused | null; at: number }>({ path, error: null, at: 0 });
  const concerns = useRef(on);
  concerns.current = on;
  const again = useRef<() => void>(() => {});
  const refresh = useCallback(() => again.current(), []);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer = 0;
    let busy = false;
    let wanted = false;
    const read = async () => {
      if (busy) {
        wanted = true;
        return;
      }
      busy = true;
      clearTimeout(timer);
      try {
        const data = await get<T>(path, abort.signal);
        asOf.value = Date.now();
        setState({ path, data, error: null, at: Date.now() });
      } catch (error) {
        if (abort.signal.aborted) return;
        const refused = error instanceof Refused ? error : new Refused(0, String(error));
        if (refused.status === 401) standing.value = "signed-out";
        setState((old) => ({ path, data: old.path === path ? old.data : undefined, error: refused, at: old.at }));
      }
      busy = false;
      if (wanted) {
        wanted = false;
        soon(100);
      } else if (every) soon(every);
    };
    const soon = (ms: number) => {
      clearTimeout(timer);
      timer = window.setTimeout(() => (paused.value || document.hidden ? soon(every || 1000) : void read()), ms);
    };
    again.current = () => void read();
    void read();
    const quiet = onEvent((event) => {
      if (event === null || (concerns.current ? concerns.current(event) : true)) soon(80);
    });
    return () => {
      quiet();
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, every]);
  const fresh = state.path === path;
  return { data: fresh ? state.data : undefined, error: fresh ? state.error : null, at: state.at, refresh };
}

export const ofJob = (job: string) => (event: EventView) => event.job === job || event.jobs.some((one) => one.id === job);
