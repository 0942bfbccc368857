//! Constructors of checks.

pub use sandboxd_protocol::system::{Check, CheckStatus as Status, DoctorResult as Checks};

pub fn ok(name: &str, message: impl Into<String>) -> Check {
    Check { name: name.to_owned(), status: Status::Ok, message: message.into(), advice: None }
}

pub fn warning(name: &str, message: impl Into<String>, advice: impl Into<String>) -> Check {
    let (message, advice) = (message.into(), Some(advice.into()));
    Check { name: name.to_owned(), status: Status::Warning, message, advice }
}

pub fn problem(name: &str, message: impl Into<String>, advice: impl Into<String>) -> Check {
    Check { status: Status::Problem, ..warning(name, message, advice) }
}
