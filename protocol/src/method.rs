//! The table of methods.

mod table;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::table::{Method, Request};
use crate::text::unwrap;
use crate::words::words;

/// Defines the table of methods: the variant, the name, the types of parameters and result, the effect, whether the result
/// is a list, the notifications that may precede the result, and the kinds of errors.
macro_rules! methods {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident = $name:literal {
            params: $params:ty, result: $result:ty, effect: $effect:ident, listing: $listing:literal,
            streams: [$($stream:ident),*],
            errors: [$($error:ident),* $(,)?],
        }
    )+) => {
        /// A method of the service.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Method {
            /// All methods.
            pub const ALL: [Method; [$($name),+].len()] = [$(Method::$variant),+];

            /// Returns the name of the method on the wire.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Method::$variant => $name,)+
                }
            }

            /// Returns the method with this name.
            pub fn from_name(name: &str) -> Option<Method> {
                match name {
                    $($name => Some(Method::$variant),)+
                    _ => None,
                }
            }

            /// Returns the doc comment of the method, with the line breaks of the source.
            pub(super) const fn doc(self) -> &'static str {
                match self {
                    $(Method::$variant => concat!($($doc, "\n"),+),)+
                }
            }

            /// Returns the effect of the method on sandboxes.
            pub const fn effect(self) -> Effect {
                match self {
                    $(Method::$variant => Effect::$effect,)+
                }
            }

            /// Returns whether the result lists many objects, and so may be some hundred kilobytes long.
            pub const fn is_listing(self) -> bool {
                match self {
                    $(Method::$variant => $listing,)+
                }
            }

            /// Returns the notifications that may precede the result.
            pub const fn streams(self) -> &'static [Notification] {
                match self {
                    $(Method::$variant => &[$(Notification::$stream),*],)+
                }
            }

            /// Returns the kinds of errors that are particular to the method. Every method may also answer the errors of
            /// the protocol, such as `invalid_params`, `unauthorized`, `shutting_down` and `internal`.
            pub const fn errors(self) -> &'static [ErrorKind] {
                match self {
                    $(Method::$variant => &[$(ErrorKind::$error),*],)+
                }
            }

            /// Returns the schema of the parameters, and adds the schemas that it refers to.
            pub fn params_schema(self, generator: &mut SchemaGenerator) -> Schema {
                match self {
                    $(Method::$variant => generator.subschema_for::<$params>(),)+
                }
            }

            /// Returns the order of the parameters.
            pub(crate) fn params_declaration(self) -> Declaration {
                match self {
                    $(Method::$variant => declaration::<$params>(),)+
                }
            }

            /// Returns the schema of the result, and adds the schemas that it refers to.
            pub fn result_schema(self, generator: &mut SchemaGenerator) -> Schema {
                match self {
                    $(Method::$variant => generator.subschema_for::<$result>(),)+
                }
            }

            /// Deserialises the parameters and serialises them again.
            pub fn check_params(self, params: Value) -> Result<Value, String> {
                match self {
                    $(Method::$variant => check::<$params>(params),)+
                }
            }

            /// Deserialises the result and serialises it again.
            pub fn check_result(self, result: Value) -> Result<Value, String> {
                match self {
                    $(Method::$variant => check::<$result>(result),)+
                }
            }
        }

        /// A request: a method with its parameters.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $($(#[doc = $doc])+ $variant($params),)+
        }

        impl Request {
            /// Parses the JSON text of the parameters of a method. The error names the parameter.
            pub fn parse(method: Method, json: &str) -> Result<Request, Error> {
                match method {
                    $(Method::$variant => params(json).map(Request::$variant),)+
                }
            }

            /// Returns the method of the request.
            pub const fn method(&self) -> Method {
                match self {
                    $(Request::$variant(_) => Method::$variant,)+
                }
            }
        }
    };
}

use methods;

/// Effect of a call on sandboxes, which decides the role that may make the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call changes state.
    Modify,
    /// The call reads from the guest. With the full role it is use of the sandbox, and so resumes a paused one. With the
    /// read-only role it is no use: it takes no hold, and a paused sandbox refuses it.
    ReadGuest,
    /// The call reads state of the service or the engine. It is no use of a sandbox, resumes none and takes no hold. Only
    /// a log that the full role follows counts as use.
    ReadState,
}

words! {
    /// Role of a caller.
    enum Role {
        /// The caller may call every method.
        Full = "full",
        /// The caller may call the methods that change no state.
        ReadOnly = "read-only",
    }
}

impl Method {
    /// Returns the purpose of the method in one phrase.
    pub fn summary(self) -> &'static str {
        self.doc().split('\n').next().unwrap_or_default().trim()
    }

    /// Returns the behaviour of the method beyond its summary: paragraphs and lists, or nothing.
    pub fn description(self) -> String {
        self.doc().split_once('\n').map_or_else(String::new, |(_, rest)| unwrap(rest))
    }

    /// Returns whether a caller with the read-only role may call the method.
    pub fn only_reads(self) -> bool {
        self.effect() != Effect::Modify
    }

    /// Returns the least role that may call the method.
    pub fn role(self) -> Role {
        if self.only_reads() { Role::ReadOnly } else { Role::Full }
    }
}

/// Deserialises a value and serialises it again.
pub(crate) fn check<T: DeserializeOwned + Serialize>(value: Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    serde_json::to_value(typed).map_err(|error| error.to_string())
}
