"""The looks of `report.html`: one style sheet, light and dark, for screens of any width and for paper."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--back:#fff;--tint:#f6f8fa;
--link:#0550ae;
--good:#116329;--goodback:#e6f6ea;--bad:#a40e26;--badback:#ffebe9;--open:#7a4b00;--openback:#fff6dd;
--k0:#cfe3f7;--k1:#d9ecd2;--k2:#f7e2c4;--k3:#e6dbf3;--k4:#f6d8dd;--k5:#d3ecea}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#30363d;--back:#0d1117;
--tint:#161b22;
--link:#79b8ff;--good:#7ee2a0;--goodback:#12261a;--bad:#ff9c94;--badback:#2d1417;--open:#f0c567;
--openback:#2b2111;
--k0:#1d3a57;--k1:#23432b;--k2:#4d3a1c;--k3:#3b2d55;--k4:#532a33;--k5:#1d4442}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--back);color:var(--ink);font:17px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;
overflow-wrap:break-word}
main,header,footer{max-width:56rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:3.5rem}
svg,pre{max-width:100%}
.brand{color:var(--soft);font-size:.85rem;letter-spacing:.04em;margin:0 0 2.2rem}
h1{font-size:clamp(1.65rem,4.6vw,2.5rem);line-height:1.2;font-weight:650;letter-spacing:-.02em;
margin:.9rem 0 0;
text-wrap:balance}
h2{font-size:1.32rem;line-height:1.3;font-weight:650;letter-spacing:-.01em;margin:0 0 .9rem}
h3{font-size:1.02rem;font-weight:650;margin:2rem 0 .5rem}
section{margin:3.75rem 0 0}
p{margin:.7rem 0;max-width:44rem}
ul,ol{padding-left:1.2rem;max-width:46rem}
li{margin:.3rem 0}
a{color:var(--link)}
.badge{display:inline-block;font-weight:700;font-size:.92rem;letter-spacing:.07em;border-radius:.45rem;
padding:.28rem .8rem}
.PROVED{color:var(--good);background:var(--goodback)}
.REFUTED,.UNSAFE{color:var(--bad);background:var(--badback)}
.UNKNOWN,.UNSOLVED{color:var(--open);background:var(--openback)}
.lead{font-size:1.08rem;color:var(--soft);margin-top:1rem}
.facts{display:grid;grid-template-columns:repeat(3,1fr);gap:1.1rem 2rem;margin:2.2rem 0 0;padding:0}
.facts div{min-width:0}
.facts dt{color:var(--soft);font-size:.82rem}
.facts dd{margin:.1rem 0 0;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.facts .wide{grid-column:1/-1;font-weight:400}

.facts .wide dd,code,pre,.m{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.facts .wide dd{font-weight:400;font-size:.86rem}
code{font-size:.86em;overflow-wrap:anywhere}
pre{font-size:.78rem;line-height:1.5;background:var(--tint);border:1px solid var(--line);border-radius:.5rem;
padding:1rem;overflow:auto;max-height:32rem}
pre.wrap{white-space:pre-wrap}
nav{margin:2.4rem 0 0;padding-top:1.1rem;border-top:1px solid var(--line);font-size:.88rem;display:flex;
flex-wrap:wrap;gap:.25rem 1.4rem}
nav a{text-decoration:none}nav a:hover,nav a:focus{text-decoration:underline}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;line-height:1.45}
table.fixed{min-width:34rem}
th{font-weight:600;text-align:left;color:var(--soft);font-size:.82rem}
th,td{padding:.5rem .9rem .5rem 0;border-bottom:1px solid var(--line);vertical-align:top}
tbody th{font-weight:400;color:var(--ink);font-size:.9rem}
tbody th code{font-size:.88em}
td.w{white-space:nowrap;font-weight:650;font-size:.8rem;letter-spacing:.03em}
td.w.PROVED,td.w.REFUTED,td.w.UNKNOWN{background:none}
.n2{text-align:right;font-variant-numeric:tabular-nums}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem;margin:1.4rem 0}
.number{background:var(--tint);border-radius:.6rem;padding:1rem 1.2rem}
.number b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.number span,.note{color:var(--soft);font-size:.86rem}
svg{display:block;width:100%;height:auto;margin:1rem 0;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg.graph{min-width:30rem}
svg text{fill:var(--ink);font-size:12px}
svg .s{fill:var(--soft);font-size:11px}
svg .n{text-anchor:middle;font-size:11px}
.k0{fill:var(--k0)}.k1{fill:var(--k1)}.k2{fill:var(--k2)}.k3{fill:var(--k3)}.k4{fill:var(--k4)}
.k5{fill:var(--k5)}
.swatch{display:inline-block;width:.85em;height:.85em;border-radius:.2em;vertical-align:-.08em;
margin-right:.4em}
.swatch.k0{background:var(--k0)}.swatch.k1{background:var(--k1)}.swatch.k2{background:var(--k2)}
.swatch.k3{background:var(--k3)}.swatch.k4{background:var(--k4)}.swatch.k5{background:var(--k5)}
.fibre{fill:none;stroke-width:1.6}
.comm{fill:var(--soft)}.marked{stroke:var(--bad);stroke-width:2.5}
.fibre.a{stroke:var(--link)}
.fibre.b{stroke:var(--bad);stroke-dasharray:5 3}
.edge{fill:none;stroke:var(--soft);stroke-width:1.2}
.node rect{fill:var(--tint);stroke:var(--line)}
.node.proved rect{fill:var(--goodback);stroke:var(--good)}
.node.reduced rect{fill:var(--openback);stroke:var(--open)}
.node.wrong rect{fill:var(--badback);stroke:var(--bad);stroke-width:2}
.flow{list-style:none;padding:0;margin:1.4rem 0;max-width:46rem}
.flow li{position:relative;margin:0 0 1.5rem;padding:.75rem 1.1rem;background:var(--tint);
border:1px solid var(--line);
border-radius:.6rem}
.flow li:not(:last-child)::after{content:"";position:absolute;left:1.6rem;bottom:-1.5rem;height:1.5rem;
border-left:2px solid var(--line)}
.flow .times{float:right;color:var(--soft);font-size:.86rem;padding-left:.6rem}
.flow p{margin:.15rem 0 0;font-size:.88rem;color:var(--soft);overflow-wrap:anywhere}
details{border-bottom:1px solid var(--line);padding:.45rem 0}
summary{cursor:pointer;overflow-wrap:anywhere}
summary .m{color:var(--soft);font-size:.82rem;margin-right:.6rem}
.formulas{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;font-size:.95rem;
margin:.8rem 0;
overflow-x:auto}
math{font-family:"STIX Two Math","Latin Modern Math","Cambria Math",math,serif;font-size:1.08em}
.legend math{font-size:1.15em}
.formulas dt{color:var(--soft);font:.78rem/1.9 system-ui,sans-serif}
.formulas dd{margin:0;line-height:1.75}
.formulas .goal{border-left:3px solid var(--good);padding-left:.6rem}
.legend{font-size:.8rem;color:var(--soft);line-height:1.5;padding-left:0;list-style:none;
overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.86rem;margin-top:4.5rem;padding-bottom:4rem}
@media (max-width:36rem){body{font-size:16px}.facts{grid-template-columns:1fr 1fr}
main,header,footer{padding-left:1.15rem;padding-right:1.15rem}
header{padding-top:2rem}.brand{margin-bottom:1.4rem}section{margin-top:3rem}
.formulas{grid-template-columns:1fr;gap:0}.formulas dd{margin-bottom:.45rem}
table.stack,table.stack tbody,table.stack tr,table.stack td,table.stack th[scope=row]{display:block;
border:0;padding:0}
table.stack thead{position:absolute;left:-99rem}
table.stack tr{border-bottom:1px solid var(--line);padding:.6rem 0}}
@media print{@page{size:A4;margin:18mm 17mm}
:root{color-scheme:light;--ink:#000;--soft:#444;--line:#bbb;--back:#fff;--tint:#f6f6f6;--link:#000;
--good:#0a4d1e;
--goodback:#e8f5ea;--bad:#8b0a1f;--badback:#fdeceb;--open:#5f3b00;--openback:#fdf5e0;--k0:#cfe3f7;
--k1:#d9ecd2;
--k2:#f7e2c4;--k3:#e6dbf3;--k4:#f6d8dd;--k5:#d3ecea}
body{font-size:10.5pt;line-height:1.45}header{padding-top:0}.brand{margin-bottom:1rem}h1{font-size:20pt}
main,header,footer{max-width:none;padding:0}section{margin-top:8mm}nav{display:none}
h2,h3{break-after:avoid}li,tr,.number,svg,summary{break-inside:avoid}svg.graph{min-width:0}
pre{max-height:none;white-space:pre-wrap}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
