//! The secret texts of tokens, and their hashes.

use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

/// What every token of the service begins with, so that people and scanners recognise one.
const PREFIX: &str = "bw_";
/// The number of characters of the id of a token, with the prefix.
const ID_CHARS: usize = PREFIX.len() + 12;
/// The shortest token that an operator may choose, in bytes.
const SHORTEST: usize = 32;
/// The longest token that anybody may send, in bytes.
const LONGEST: usize = 8 * 1024;

/// A token with its secret. It is never printed.
#[derive(Clone)]
pub struct TokenSecret(String);

/// The SHA-256 of a token. Tokens are random, so that nobody finds one by its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash([u8; 32]);

impl TokenSecret {
    /// Makes a new token.
    pub fn random() -> Self {
        let random = || Uuid::new_v4().simple().to_string();
        let id: String = random().chars().take(ID_CHARS - PREFIX.len()).collect();
        // Twice 122 random bits.
        Self(format!("{PREFIX}{id}_{}{}", random(), random()))
    }

    /// Takes the token that an operator has chosen.
    ///
    /// # Errors
    /// Says what is wrong with it, without showing it.
    pub fn chosen(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < SHORTEST || text.len() > LONGEST {
            return Err(format!(
                "a token has at least {SHORTEST} characters and at most {LONGEST}; make one with `openssl rand -hex 32`"
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token has no spaces, and only ASCII characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads what a client has sent, if it can be a token at all.
    pub fn sent(text: &str) -> Option<Self> {
        let is_token = text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
        (is_token && !text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns its beginning, which is no secret, if it is a token of the service.
    pub fn id(&self) -> Option<&str> {
        let id = self.0.get(..ID_CHARS)?;
        let rest = self.0.get(ID_CHARS..)?;
        (id.starts_with(PREFIX) && rest.starts_with('_')).then_some(id)
    }

    /// Returns its hash.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(&self.0).into())
    }

    /// Returns the token for the one who may see it: its new owner.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Returns it as a client sends it.
    pub fn as_text(&self) -> &str {
        &self.0
    }
}

impl SecretHash {
    /// Returns whether it is the hash with these hexadecimal digits. Takes equally long for each.
    pub fn is(&self, digits: &str) -> bool {
        self.to_string().as_bytes().ct_eq(digits.as_bytes()).into()
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('…')
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('…')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_an_id_is_never_printed_and_has_the_hash_of_its_text() {
        let token = TokenSecret::random();
        let id = token.id().unwrap().to_owned();
        assert!(id.starts_with("bw_") && id.len() == 15, "{id}");
        assert_eq!(format!("{token:?}{:?}", token.hash()), "……");
        let again = TokenSecret::sent(token.as_text()).unwrap();
        assert!(again.hash().is(&token.hash().to_string()));
        assert!(!again.hash().is(&TokenSecret::random().hash().to_string()));
        assert!(!again.hash().is(""));
        assert_ne!(TokenSecret::random().id(), token.id());
    }

    #[test]
    fn text_that_is_no_token_is_refused() {
        for text in [
            "",
            "short",
            &"x".repeat(9000),
            &"ä".repeat(40),
            &"a b".repeat(20),
        ] {
            assert!(TokenSecret::chosen(text).is_err(), "{text:.10}");
        }
        for text in ["", "a\u{7f}", "a b", &"x".repeat(9000)] {
            assert!(TokenSecret::sent(text).is_none(), "{text:.10}");
        }
        let chosen = TokenSecret::chosen(&format!("{}\n", "x".repeat(32))).unwrap();
        assert_eq!((chosen.as_text().len(), chosen.id()), (32, None));
    }
}
