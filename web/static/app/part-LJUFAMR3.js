import{M as l}from"./part-42IH3I4A.js";function n(e){return l("section",{class:"scroll",tabIndex:0,"aria-label":e.label,children:e.children})}export{n as a};
