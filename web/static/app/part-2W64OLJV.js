import{K as l}from"./part-6P6VZ5JC.js";function n(e){return l("section",{class:"scroll",tabIndex:0,"aria-label":e.label,children:e.children})}export{n as a};
