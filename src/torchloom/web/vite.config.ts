import { defineConfig } from "vite";

// Relative addresses: the page also works under a prefix that a proxy adds. No inline script, no inlined file:
// the Content-Security-Policy forbids both.
export default defineConfig({
  base: "./",
  build: { outDir: "dist", assetsInlineLimit: 0, modulePreload: { polyfill: false }, target: "es2022" },
});
