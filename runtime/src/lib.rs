//! Placeholder header.
#![deny(unsafe_code)]
pub mod device {
    //! Devices.
    pub mod sim;
}
