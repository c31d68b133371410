import{o as e,t as o}from"./part-MQHDIHV3.js";import"./part-TFHKAESZ.js";function t(){return e(o,{title:"Job",children:"…"})}export{t as JobPage};
