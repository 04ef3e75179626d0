// Who looks at the page, and where in it: session, role, theme, address.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Identity } from "./api";
import { Cell } from "./live";

export const who = new Cell<Identity | null>(null);
export const canAct = () => who.value !== null && who.value.role !== "read";

export type Theme = "system" | "light" | "dark";
export const theme = new Cell<Theme>((localStorage.getItem("theme") as Theme | null) ?? "system");

/** What is shown now; pictures are drawn again when it changes. */
export const isDark = new Cell(false);

export function showTheme(): void {
  const dark = theme.value === "dark" || (theme.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  localStorage.setItem("theme", theme.value);
  isDark.value = dark;
}
theme.follow(showTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);

export interface Place {
  /** The parts of the path: `#/job/x/logs` → ["job", "x", "logs"]. */
  parts: string[];
  query: URLSearchParams;
}

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function usePlace(): Place {
  const [place, setPlace] = useState(read);
  const shown = useRef(place.parts.join("/"));
  useEffect(() => {
    const moved = () => setPlace(read());
    const walked = () => {
      // At once and not after drawing: later it would take the focus from a field that somebody types into.
      if (read().parts.join("/") !== shown.current) document.getElementById("main")?.focus({ preventScroll: true });
      shown.current = read().parts.join("/");
      moved();
    };
    addEventListener("hashchange", walked);
    moved(); // it may have changed before anybody listened
    return () => removeEventListener("hashchange", walked);
  }, []);
  return place;
}

export const link = (...parts: string[]) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function go(address: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = address.replace(/^#/, "");
}
