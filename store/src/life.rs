//! The lives of jobs as workers name them in their requests, and whether a request may be answered.
//!
//! What must stay true: what is gone is gone whatever the key. A life without a key was created
//! before there were any; its workers have none to give.

use contract::{JobId, LifeKey, PartitionId};
use subtle::ConstantTimeEq as _;

use crate::db::{DbError, JobRow};
use crate::{Incarnation, Result, Store};

/// The job that a worker asks about, as the URL of its message names it.
#[derive(Debug, Clone, Copy)]
pub struct AskedJob<'a> {
    /// The partition of the job.
    pub partition: &'a PartitionId,
    /// The id of the job.
    pub job: &'a JobId,
    /// The incarnation, if the URL names it.
    pub incarnation: Option<i64>,
    /// The round, if the URL names it.
    pub round: Option<u32>,
    /// The key, if the URL has one.
    pub key: Option<&'a LifeKey>,
    /// Whether nobody is answered without the key.
    pub is_key_needed: bool,
}

/// What a worker is told about the job that it asks about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked<T> {
    /// This.
    Found(T),
    /// There is no such job, or this is a past incarnation or round of it.
    Gone,
    /// Nothing: the key is not that of the job.
    WrongKey,
}

/// Returns whether a request with this key is answered about a life with that one.
fn may_ask(of_life: Option<&LifeKey>, given: Option<&LifeKey>, is_needed: bool) -> bool {
    match (of_life, given) {
        (Some(own), Some(given)) => own
            .secret()
            .as_bytes()
            .ct_eq(given.secret().as_bytes())
            .into(),
        (None, Some(_)) => false,
        (Some(_), None) => !is_needed,
        (None, None) => true,
    }
}

/// Returns the key of a new life: 128 bits of the random source of the operating system.
pub(crate) fn new_key() -> Result<LifeKey, DbError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| DbError::Refused(error.to_string().into()))?;
    Ok(LifeKey::from(&*format!(
        "{:032x}",
        u128::from_ne_bytes(bits)
    )))
}

impl<'a> From<&'a Incarnation> for AskedJob<'a> {
    fn from(job: &'a Incarnation) -> Self {
        Self {
            partition: &job.partition,
            job: &job.job,
            incarnation: Some(job.number),
            round: Some(job.round),
            key: job.key.as_ref(),
            is_key_needed: false,
        }
    }
}

impl AskedJob<'_> {
    pub(crate) fn may_ask(self, row: &JobRow) -> bool {
        may_ask(row.life_key.as_ref(), self.key, self.is_key_needed)
    }
}

impl<T> Asked<T> {
    /// Returns something else of the job.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Asked<U> {
        match self {
            Self::Found(found) => Asked::Found(of(found)),
            Self::Gone => Asked::Gone,
            Self::WrongKey => Asked::WrongKey,
        }
    }
}

impl Store {
    /// Returns the key of a life of a job; `None` if it has none, or is past.
    pub async fn life_key(
        &self,
        partition: &PartitionId,
        job: &JobId,
        incarnation: i64,
    ) -> Result<Option<LifeKey>> {
        let row = self.job_row(partition, job).await?;
        let row = row.filter(|row| row.incarnation == incarnation);
        Ok(row.and_then(|row| row.life_key))
    }

    pub(crate) async fn asked_job(&self, asked: AskedJob<'_>) -> Result<Asked<JobRow>> {
        let row = self.job_row(asked.partition, asked.job).await?;
        let row = row.filter(|row| row.is_in(asked.incarnation, asked.round));
        Ok(match row {
            None => Asked::Gone,
            Some(row) if asked.may_ask(&row) => Asked::Found(row),
            Some(_) => Asked::WrongKey,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_must_be_that_of_the_life_if_it_is_given_or_needed() {
        let (own, other) = (LifeKey::from("00f1"), LifeKey::from("00f2"));
        let longer = LifeKey::from("00f10");
        for (of_life, given, optional, needed) in [
            (Some(&own), Some(&own), true, true),
            (Some(&own), Some(&other), false, false),
            (Some(&own), Some(&longer), false, false),
            (Some(&own), None, true, false),
            (None, Some(&own), false, false),
            (None, None, true, true),
        ] {
            let decided = [false, true].map(|is_needed| may_ask(of_life, given, is_needed));
            assert_eq!(decided, [optional, needed], "{of_life:?} {given:?}");
        }
    }

    #[test]
    fn each_new_key_is_another_one_of_32_digits() {
        let [first, second] = [new_key().unwrap(), new_key().unwrap()];
        assert_ne!(first, second);
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        assert!(first.secret().len() == 32 && first.secret().bytes().all(is_digit));
    }
}
