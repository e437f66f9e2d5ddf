// SPDX-License-Identifier: Apache-2.0

// Package fold brings a text into the one form that hints, prompts and patterns are compared in (S-5, M-16):
// what reads the same is the same.
//
//	fold.String("Ｄelｅtе\u200b  ALL")      // "delete all": full width, a Cyrillic е, a zero-width space, case, two spaces
//	fold.Read("deleteUser").Split          // "delete_user"
//	fold.Skeleton("de1ete") == fold.Skeleton("deIete") // letters and digits that look alike are one
//
// Guarantees. The work and the memory are linear in the text, which is never cut. String is idempotent, and
// so are the other forms. What a form leaves out of the text (characters that can't be seen, letters of other
// scripts in a Latin word) is told in Hidden, so that hiding is itself a sign. There is no error: every byte
// sequence has a form; bytes that aren't UTF-8 become U+FFFD.
//
// It isn't a transliteration and no judgement of a language: a text in Russian or Greek is folded into Latin
// letters that mean nothing, which is of use only for comparing with a text folded the same way. Marks are
// dropped, so accents and Indic vowel signs make no difference. Words in pictures, sounds ("dee-leet"), or
// another language aren't seen.
package fold
