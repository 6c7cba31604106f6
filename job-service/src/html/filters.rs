//! What templates make of the values that they show. Askama escapes what a filter returns.
//!
//! Loops and patterns put references before a value, so a filter takes what is a number behind any
//! of them.

#![expect(
    clippy::inline_always,
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "askama expects such functions, and writes such code for them"
)]

use std::fmt::Display;

use askama::{PrimitiveType, Result, Values, filter_fn};

use crate::html::text;

/// A whole number with separators.
#[filter_fn]
pub fn number<T: Display + Copy>(number: T, _: &dyn Values) -> Result<String> {
    Ok(text::number(number))
}

/// A number of things.
#[filter_fn]
pub fn counted<T: Display + Copy>(count: T, _: &dyn Values, what: &str) -> Result<String> {
    Ok(text::counted(count, what))
}

/// A rate, in a second.
#[filter_fn]
pub fn rate<T: PrimitiveType<Value = f64>>(rate: T, _: &dyn Values) -> Result<String> {
    Ok(text::rate(rate.get()))
}

/// A percentage.
#[filter_fn]
pub fn percent<T: PrimitiveType<Value = f64>>(percent: T, _: &dyn Values) -> Result<String> {
    Ok(text::percent(percent.get()))
}

/// A number of bytes.
#[filter_fn]
pub fn bytes<T: PrimitiveType<Value: TryInto<i64>>>(bytes: T, _: &dyn Values) -> Result<String> {
    Ok(text::bytes(bytes.get().try_into().unwrap_or(i64::MAX)))
}

/// A duration in milliseconds.
#[filter_fn]
pub fn duration<T: PrimitiveType<Value = i64>>(millis: T, _: &dyn Values) -> Result<String> {
    Ok(text::duration(millis.get()))
}

/// A time for `<time datetime>`.
#[filter_fn]
pub fn machine<T: PrimitiveType<Value = i64>>(millis: T, _: &dyn Values) -> Result<String> {
    Ok(text::machine(millis.get()))
}

/// A time for a reader.
#[filter_fn]
pub fn human<T: PrimitiveType<Value = i64>>(millis: T, _: &dyn Values) -> Result<String> {
    Ok(text::human(millis.get()))
}
