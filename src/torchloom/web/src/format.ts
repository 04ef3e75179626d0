// Numbers, times and spans as people read them: always with a unit, never with more digits than they are worth.

export const NONE = "–";

/** 0.0824 → "82 ms", 75 → "1 min 15 s". */
export function span(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 1) return s < 0.001 ? `${digits(s * 1e6, 3)} µs` : `${digits(s * 1000, 3)} ms`;
  if (s < 60) return `${Number.isInteger(s) ? s : digits(s, 3)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return two(whole, 60, "min", "s");
  if (whole < 86400) return two(Math.round(whole / 60), 60, "h", "min");
  return two(Math.round(whole / 3600), 24, "d", "h");
}

function two(value: number, base: number, big: string, small: string): string {
  const rest = value % base;
  return rest ? `${Math.floor(value / base)} ${big} ${rest} ${small}` : `${Math.floor(value / base)} ${big}`;
}

export function digits(value: number, most: number): string {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 6 || size < -4) return value.toExponential(Math.max(0, most - 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  return grouped(Number(value.toPrecision(most)).toFixed(Math.max(0, Math.min(8, most - 1 - size))));
}

/** Without zeros at the end that say nothing. */
export const short = (text: string) => (text.includes("e") || !text.includes(".") ? text : text.replace(/\.?0+$/, ""));

function grouped(text: string): string {
  const [whole = "", rest] = text.split(".");
  const made = whole.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return rest === undefined ? made : `${made}.${rest}`;
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : grouped(String(Math.round(value)));
}

/** Any number of a script: what JSON cannot hold comes by its name. */
export function value(given: unknown): string {
  if (given === null || given === undefined) return NONE;
  if (typeof given === "number") return Number.isInteger(given) && Math.abs(given) < 1e6 ? count(given) : short(digits(given, 5));
  if (typeof given === "string") return given;
  return JSON.stringify(given);
}

export function percent(share: number | null | undefined, places = 1): string {
  return share === null || share === undefined ? NONE : `${(100 * share).toFixed(share === 1 || share === 0 ? 0 : places)} %`;
}

export function bytes(size: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let left = size;
  while (left >= 1000 && at < units.length - 1) [left, at] = [left / 1000, at + 1];
  return `${digits(left, 3)} ${units[at]}`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dayFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** A point in time: today's by the clock, others with their day. */
export function time(ns: number): string {
  if (!ns) return NONE;
  const at = new Date(ns / 1e6);
  return at.toDateString() === new Date().toDateString() ? clockFormat.format(at) : dayFormat.format(at);
}

export function full(ns: number): string {
  return ns ? new Date(ns / 1e6).toISOString() : "";
}

export function ago(ns: number, nowMs: number): string {
  return ns ? `${span(Math.max(0, Math.round(nowMs / 1000 - ns / 1e9)))} ago` : NONE;
}

export function plural(n: number, word: string, many = `${word}s`): string {
  return `${count(n)} ${n === 1 ? word : many}`;
}
