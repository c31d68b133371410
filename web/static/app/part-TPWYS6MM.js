import{a as n}from"./part-MXAR5DSG.js";import{M as t}from"./part-I2CJLNZ6.js";function p(e){let r=e.split(`
`).filter(o=>o.startsWith("$ "));return r.length?r.map(o=>o.slice(2)).join(`
`):e}function s({code:e}){return t("div",{class:"example",children:[t("pre",{tabIndex:0,children:t("code",{children:e})}),t(n,{text:p(e),label:"Copy"})]})}export{s as a};
