import{K as l}from"./part-2WFX7JWF.js";function n(e){return l("section",{class:"scroll",tabIndex:0,"aria-label":e.label,children:e.children})}export{n as a};
