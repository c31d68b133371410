import{M as l}from"./part-I2CJLNZ6.js";function n(e){return l("section",{class:"scroll",tabIndex:0,"aria-label":e.label,children:e.children})}export{n as a};
