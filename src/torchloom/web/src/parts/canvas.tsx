// A canvas that is as wide as its place, sharp on every screen, drawn when its inputs change, with a tip under
// the pointer and under the keyboard.
import { useEffect, useRef, useState } from "preact/hooks";
import { useCell } from "../live";
import { isDark } from "../session";

export interface Tip {
  x: number;
  y: number;
  text: string;
}

export interface Drawn {
  /** What is at a place of the picture. */
  at: (x: number, y: number) => Tip | null;
  /** The place after one key; null if there is none. */
  key?: (key: string) => Tip | null;
  click?: (x: number, y: number) => void;
}

export type Draw = (ctx: CanvasRenderingContext2D, width: number, css: (name: string) => string) => Drawn;

export function Picture({ height, label, draw, deps }: { height: (width: number) => number; label: string; draw: Draw; deps: unknown[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawn = useRef<Drawn | null>(null);
  const [width, setWidth] = useState(0);
  const [tip, setTip] = useState<Tip | null>(null);
  const chosen = useCell(isDark);
  useEffect(() => {
    const box = canvas.current!.parentElement!;
    const watch = new ResizeObserver(() => setWidth(box.clientWidth));
    watch.observe(box);
    setWidth(box.clientWidth);
    return () => watch.disconnect();
  }, []);
  const tall = width ? Math.round(height(width)) : 0;
  useEffect(() => {
    const element = canvas.current;
    if (!element || !width || !tall) return;
    const sharp = Math.min(2, devicePixelRatio || 1);
    element.width = width * sharp;
    element.height = tall * sharp;
    const ctx = element.getContext("2d");
    if (!ctx) return;
    ctx.scale(sharp, sharp);
    const style = getComputedStyle(document.documentElement);
    drawn.current = draw(ctx, width, (name) => style.getPropertyValue(name).trim());
  }, [width, tall, chosen, ...deps]);
  const place = (event: MouseEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  return (
    <div class="picture">
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        tabIndex={0}
        style={{ height: `${tall}px` }}
        onMouseMove={(event) => setTip(drawn.current?.at(...place(event)) ?? null)}
        onMouseLeave={() => setTip(null)}
        onBlur={() => setTip(null)}
        onClick={(event) => drawn.current?.click?.(...place(event))}
        onKeyDown={(event) => {
          const found = drawn.current?.key?.(event.key);
          if (found) {
            event.preventDefault();
            setTip(found);
          }
        }}
      />
      {tip && (
        <div class="tip" style={tip.x > width / 2 ? { right: `${width - tip.x + 10}px`, top: `${tip.y + 12}px` } : { left: `${tip.x + 10}px`, top: `${tip.y + 12}px` }}>
          {tip.text}
        </div>
      )}
    </div>
  );
}

/** A colour between two of the same form #rrggbb. */
export function blend(from: string, to: string, share: number): string {
  const a = parts(from);
  const b = parts(to);
  const s = Math.max(0, Math.min(1, share));
  return `rgb(${a.map((v, i) => Math.round(v + (b[i]! - v) * s)).join(" ")})`;
}

/** The colours between two, by a share from 0 to 1: made once, as a picture has thousands of cells. */
export function ramp(from: string, to: string): (share: number) => string {
  const made = Array.from({ length: 65 }, (_, at) => blend(from, to, at / 64));
  return (share) => made[Math.max(0, Math.min(64, Math.round(share * 64)))]!;
}

function parts(color: string): number[] {
  const hex = color.replace("#", "");
  const long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
  return [0, 2, 4].map((i) => parseInt(long.slice(i, i + 2), 16) || 0);
}
