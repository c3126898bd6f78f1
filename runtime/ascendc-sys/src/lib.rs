//! Raw declarations of Huawei's Ascend runtime, loaded at run time. Empty for now: the declarations come with the Ascend
//! work, and no other crate may rely on anything here before that.
