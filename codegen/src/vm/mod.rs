//! The tile VM: runs plain IR on the CPU. It is the meaning of the language and the witness of every emitter, so it
//! shares no code with them.
