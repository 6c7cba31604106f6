//! What stands for files elsewhere in a program that is built without them.

use std::io::Read;

use super::{CopyPin, Files, Packing, Pin, Place};
use crate::SplitError;
use crate::reading::Reading;

/// No places.
#[derive(Debug, Clone, Default)]
pub struct Places;

/// No copy.
pub enum Copied {}

impl Places {
    #[expect(clippy::unused_self, reason = "it is so where there are places")]
    pub fn look(&self, name: &str, _: Place<'_>, _: &Reading) -> Result<Pin, SplitError> {
        Err(without(name))
    }

    #[expect(clippy::unused_self, reason = "it is so where there are places")]
    pub fn open(
        &self,
        name: &str,
        _: Place<'_>,
        _: &Pin,
        _: (u64, u64),
        _: &Reading,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        Err(without(name))
    }

    #[expect(clippy::unused_self, reason = "it is so where there are places")]
    pub fn list(
        &self,
        name: &str,
        _: Place<'_>,
        _: usize,
        _: &Reading,
    ) -> Result<Vec<(String, Pin)>, SplitError> {
        Err(without(name))
    }

    #[expect(clippy::unused_self, reason = "it is so where there are places")]
    pub fn check_folder(&self, name: &str, _: Place<'_>, _: &Reading) -> Result<(), SplitError> {
        Err(without(name))
    }

    #[expect(clippy::unused_self, reason = "it is so where there are places")]
    pub fn copied(&self, _: &Files, name: &str, _: &Pin, _: Packing) -> Result<Copied, SplitError> {
        Err(without(name))
    }
}

impl Copied {
    pub fn pin(&self) -> CopyPin {
        match *self {}
    }

    pub fn read_from(self, _: u64) -> Box<dyn Read + Send> {
        match self {}
    }
}

fn without(name: &str) -> SplitError {
    SplitError::Definition(format!(
        "{:?} cannot be read: this program is built without the feature `sources` of the batch worker",
        super::shown(name)
    ))
}
